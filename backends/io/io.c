/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/io/io.h"

#include "backends/io/io_ring.h"
#include "common/cleanup.h"
#include "common/log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

/* Why there is no io_uring, for good; 0: there is. */
static int refused;

static void try_ring(void)
{
    refused = io_ring_try();
}

static void say_once(bool asked_for, int errnum)
{
    static atomic_flag said = ATOMIC_FLAG_INIT;
    static const char text[] =
        "io_uring cannot be used: %s; files are read and written by plain "
        "system calls";
    if (atomic_flag_test_and_set(&said))
        return;
    if (asked_for)
        mcfs_warning(text, strerror(errnum));
    else
        mcfs_info(text, strerror(errnum));
}

const char *io_engine_name(enum io_engine engine)
{
    return engine == IO_URING ? "uring" : "plain";
}

int io_engine_choose(const char *name, enum io_engine *out, struct mcfs_error *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    bool asked_for = name && strcmp(name, "uring") == 0;
    *out = IO_PLAIN;
    if (name && strcmp(name, "plain") == 0)
        return 0;
    if (name && !asked_for && strcmp(name, "auto") != 0)
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "I/O engine '%s' is not auto, uring or plain",
                         name);
    pthread_once(&once, try_ring);
    if (refused)
        say_once(asked_for, refused);
    else
        *out = IO_URING;
    return 0;
}

void io_begin(struct io_batch *b, enum io_engine engine)
{
    int errnum = 0;
    b->ring = engine == IO_PLAIN ? NULL : io_ring_take(&errnum);
    if (errnum) /* this thread has none: too many open files, or no memory */
        say_once(true, errnum);
}

void io_begin_linked(struct io_batch *b, enum io_engine engine)
{
    io_begin(b, engine);
    if (b->ring)
        io_ring_link(b->ring);
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

int io_end_synced(struct io_batch *b, int fd)
{
    int errnum = b->ring ? io_ring_finish_synced(b->ring, fd) : fdatasync(fd) ? errno : 0;
    b->ring = NULL;
    return errnum;
}

int io_open_direct(int fd, enum io_op op)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    return open(path, (op == IO_READ ? O_RDONLY : O_WRONLY) | O_DIRECT | O_CLOEXEC);
}
