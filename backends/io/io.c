/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/io/io.h"

#include "backends/io/io_ring.h"
#include "common/cleanup.h"
#include "common/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>

int io_engine_parse(const char *name, enum io_engine *out, struct mcfs_error *err)
{
    static const char *const names[] = {"auto", "uring", "sync"};
    *out = IO_AUTO;
    for (size_t i = 0; name && i < MCFS_ARRAY_SIZE(names); i++) {
        if (strcmp(name, names[i]) != 0)
            continue;
        *out = (enum io_engine)i;
        return 0;
    }
    return name ? mcfs_fail(err, MCFS_INVALID_PARAMS, "I/O engine '%s' is not auto, uring or sync",
                            name)
                : 0;
}

static void say_once(enum io_engine engine, int errnum)
{
    static atomic_flag said = ATOMIC_FLAG_INIT;
    static const char text[] =
        "io_uring cannot be used: %s; files are read and written by plain "
        "system calls";
    if (atomic_flag_test_and_set(&said))
        return;
    if (engine == IO_URING)
        mcfs_warning(text, strerror(errnum));
    else
        mcfs_info(text, strerror(errnum));
}

void io_begin(struct io_batch *b, enum io_engine engine)
{
    int errnum = 0;
    b->ring = engine == IO_PLAIN ? NULL : io_ring_take(&errnum);
    if (errnum)
        say_once(engine, errnum);
}

void io_add(struct io_batch *b, struct io_item *item)
{
    item->done = 0;
    item->errnum = 0;
    if (b->ring && item->len)
        io_ring_add(b->ring, item);
    else
        io_plain(item);
}

void io_end(struct io_batch *b)
{
    if (b->ring)
        io_ring_finish(b->ring);
    b->ring = NULL;
}

int io_open_direct(int fd, enum io_op op)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    return open(path, (op == IO_READ ? O_RDONLY : O_WRONLY) | O_DIRECT | O_CLOEXEC);
}
