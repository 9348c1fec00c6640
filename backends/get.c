/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/get.h"

#include "common/cleanup.h"

#include <errno.h>

#define AT_ONCE 256 /* readers; each holds one or two descriptors */

/* One item on its way. */
struct getting {
    struct mcfs_backend_get *item;
    struct mcfs_backend_reader *reader;
    struct io_item io;
    bool in_batch;
};

static void start(struct mcfs_backend *b, struct io_batch *batch, struct getting *g)
{
    struct mcfs_backend_get *item = g->item;
    uint64_t offset, length;
    item->got = 0;
    item->err = (struct mcfs_error)MCFS_ERROR_INIT;
    g->io.direct_fd = -1;
    g->reader = b->ops->reader_open(b, item->tenant, item->key, item->version, &item->err);
    if (!g->reader)
        return;
    int fd = b->ops->reader_fd(g->reader, &offset, &length);
    if (fd < 0 || item->offset >= length)
        return;
    size_t len = (size_t)MCFS_MIN(item->len, length - item->offset);
    g->io = io_item(IO_READ, fd, item->buf, len, offset + item->offset);
    if (item->direct)
        g->io.direct_fd = io_open_direct(fd, IO_READ);
    g->in_batch = true;
    io_add(batch, &g->io);
}

static void finish(struct mcfs_backend *b, struct getting *g)
{
    struct mcfs_backend_get *item = g->item;
    if (g->in_batch && !g->io.errnum && g->io.done == g->io.len) {
        item->got = g->io.done;
    } else if (g->reader) {
        /* The reader says what is wrong, in the words of its layout. */
        int64_t n = b->ops->reader_read(g->reader, item->buf, item->len, item->offset, &item->err);
        item->got = n < 0 ? 0 : (size_t)n;
    }
    if (g->io.direct_fd >= 0)
        close(g->io.direct_fd);
    if (g->reader)
        b->ops->reader_close(g->reader);
}

static size_t get_some(struct mcfs_backend *b, enum io_engine engine,
                       struct mcfs_backend_get *items, size_t n)
{
    _cleanup_free_ struct getting *all = calloc(n, sizeof(*all));
    struct io_batch batch;
    size_t failed = 0;
    if (!all) {
        for (size_t i = 0; i < n; i++)
            mcfs_fail_errno(&items[i].err, ENOMEM, "get");
        return n;
    }
    io_begin(&batch, engine);
    for (size_t i = 0; i < n; i++) {
        all[i].item = &items[i];
        start(b, &batch, &all[i]);
    }
    io_end(&batch);
    for (size_t i = 0; i < n; i++) {
        finish(b, &all[i]);
        failed += items[i].err.code != MCFS_OK;
    }
    return failed;
}

size_t backend_get(struct mcfs_backend *b, enum io_engine engine, struct mcfs_backend_get *items,
                   size_t n)
{
    size_t failed = 0;
    for (size_t at = 0; at < n; at += AT_ONCE)
        failed += get_some(b, engine, items + at, MCFS_MIN(n - at, AT_ONCE));
    return failed;
}
