/* SPDX-License-Identifier: Apache-2.0 */
/* The engine without io_uring: an item is finished when it has been added. */
#include "backends/io/io_ring.h"

#include "common/cleanup.h"
#include "common/file.h"

#include <errno.h>

#define CHUNK (4u << 20) /* of what goes past the page cache */

static ssize_t transfer(const struct io_item *i, int fd, size_t at, size_t len)
{
    char *buf = (char *)i->buf + at;
    if (i->op == IO_READ)
        return mcfs_pread_full(fd, buf, len, i->offset + at);
    return mcfs_pwrite_full(fd, buf, len, i->offset + at) ? -1 : (ssize_t)len;
}

/* As much from the beginning as can go past the page cache. */
static size_t transfer_direct(const struct io_item *i)
{
    size_t at = 0, whole = i->len & ~(size_t)(IO_BLOCK - 1);
    if (i->direct_fd < 0 || i->offset % IO_BLOCK || (uintptr_t)i->buf % IO_MEMORY_ALIGN)
        return 0;
    while (at < whole) {
        char *buf = (char *)i->buf + at;
        size_t len = MCFS_MIN(CHUNK, whole - at);
        off_t off = (off_t)(i->offset + at);
        ssize_t n = i->op == IO_READ ? pread(i->direct_fd, buf, len, off)
                                     : pwrite(i->direct_fd, buf, len, off);
        if (n < 0 && errno == EINTR)
            continue;
        if (n > 0)
            at += (size_t)n;
        if (n != (ssize_t)len)
            break; /* the page cache's way goes on, or tells what is wrong */
    }
    return at;
}

void io_plain(struct io_item *i)
{
    size_t at = transfer_direct(i);
    ssize_t n = at < i->len ? transfer(i, i->fd, at, i->len - at) : 0;
    if (n < 0)
        i->errnum = errno;
    else
        i->done = at + (size_t)n;
}
