/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Large values from memory: each becomes a bucket of its own, and those of one batch are written
 * side by side.
 *
 * The bucket has an empty log and a writer while its value is written, and nobody finds it.  Its
 * PUT record follows the value, so that what a crash leaves before that is a bucket without
 * objects, which recovery removes.  The checksum is taken while the disk works.
 *
 * A put of the same version that is under way elsewhere may wait for one of ours: so all of ours
 * are landed before we wait for it.
 */
#include "backends/bucket/bucket_batch.h"

#include "common/cleanup.h"
#include "common/crc32c.h"

#include <fcntl.h>
#include <limits.h>

#define DIRECT_MIN (16ull << 20) /* bytes of a batch; less is better kept in memory, to be read */

/* One value on its way. */
struct flight {
    struct bucket_put put;
    struct io_item io;
};

int batch_begin(struct batch *t, struct store *s, const struct mcfs_backend_put *items, size_t n)
{
    uint64_t bytes = 0;
    size_t large = 0;
    *t = (struct batch){.store = s};
    for (size_t i = 0; i < n; i++)
        if (batch_takes(s, &items[i])) {
            large++;
            bytes += items[i].object.size;
        }
    t->direct = bytes >= DIRECT_MIN;
    t->cap = MCFS_MIN(large, BATCH_MAX);
    t->flights = t->cap ? calloc(t->cap, sizeof(*t->flights)) : NULL;
    return t->cap && !t->flights ? -1 : 0;
}

bool batch_takes(const struct store *s, const struct mcfs_backend_put *item)
{
    return item->data && item->object.size >= s->config.single_object_min_bytes;
}

/* ---- the start ---- */

/* Makes the bucket's files; nothing is left of them on failure.  The caller holds its lock. */
static int make_files(struct store *s, struct bucket *b, int *fd, struct mcfs_error *err)
{
    char path[PATH_MAX];
    if (bucket_create_log(s, b, false, err))
        return -1;
    bucket_path(s, b->id, "bucket", path, sizeof(path));
    *fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (*fd >= 0)
        return 0;
    mcfs_fail_errno(err, errno, "%s", path);
    bucket_path(s, b->id, "sum", path, sizeof(path));
    unlink(path);
    return -1;
}

static int start(struct batch *t, struct flight *f, struct mcfs_error *err)
{
    struct store *s = t->store;
    struct entry *e = f->put.entry;
    if (space_claim(s, entry_size(e), err))
        return -1;
    struct bucket *b = bucket_add(s, bucket_next_id(s));
    if (!b) {
        space_return(s, entry_size(e));
        return mcfs_fail_errno(err, ENOMEM, "bucket");
    }
    int fd = -1;
    MCFS_LOCK_SCOPE(&b->lock);
    b->single = true;
    b->keys = 1;
    b->data_end = entry_size(e);
    b->writers = 1;
    entry_set_bucket(e, b);
    entry_set_offset(e, 0);
    if (make_files(s, b, &fd, err)) {
        b->writers = 0;
        bucket_give_up_single(s, b, entry_size(e));
        return -1;
    }
    f->io = io_item(IO_WRITE, fd, f->put.item->data, entry_size(e), 0);
    if (t->direct && (uintptr_t)f->io.buf % IO_MEMORY_ALIGN == 0)
        f->io.direct_fd = io_open_direct(fd, IO_WRITE);
    /* Direct writes that make a file grow are done one after the other.  What goes wrong here the
     * write meets again. */
    if (f->io.direct_fd >= 0)
        (void)fallocate(fd, 0, 0, (off_t)entry_size(e));
    return 0;
}

/* ---- the end ---- */

/* The caller holds the bucket's lock. */
static int record(struct store *s, struct bucket *b, struct entry *e, struct mcfs_error *err)
{
    _cleanup_buf_ struct mcfs_buf buf = MCFS_BUF_INIT;
    entry_record(e, &buf);
    if (buf.failed)
        return mcfs_fail_errno(err, ENOMEM, "bucket");
    if (bucket_append_log(s, b, buf.data, buf.len, err))
        return -1;
    bucket_link_single(s, b, e);
    return 0;
}

static int finish(struct store *s, struct flight *f, struct mcfs_error *err)
{
    struct entry *e = f->put.entry;
    struct bucket *b = entry_bucket(e);
    char path[PATH_MAX];
    bucket_path(s, b->id, "bucket", path, sizeof(path));
    if (f->io.direct_fd >= 0)
        close(f->io.direct_fd);
    close(f->io.fd);
    int rc = f->io.errnum ? mcfs_fail_errno(err, f->io.errnum, "%s", path) : 0;
    MCFS_LOCK_SCOPE(&b->lock);
    b->writers = 0;
    if (rc == 0 && (rc = record(s, b, e, err)) == 0)
        return 0;
    unlink(path);
    bucket_path(s, b->id, "sum", path, sizeof(path));
    unlink(path);
    bucket_give_up_single(s, b, entry_size(e));
    return rc;
}

static size_t land(struct batch *t)
{
    size_t failed = 0;
    if (t->count)
        io_end(&t->io);
    for (size_t i = 0; i < t->count; i++) {
        struct flight *f = &t->flights[i];
        int rc = finish(t->store, f, &f->put.item->err);
        failed += put_end(t->store, &f->put, rc) != 0;
    }
    t->count = 0;
    return failed;
}

size_t batch_add(struct batch *t, struct mcfs_backend_put *item)
{
    size_t failed = t->count == t->cap ? land(t) : 0;
    struct flight *f = &t->flights[t->count];
    enum put_state state = put_begin(t->store, &f->put, item, t->count == 0);
    if (state == PUT_BUSY) {
        failed += land(t);
        f = &t->flights[0];
        state = put_begin(t->store, &f->put, item, true);
    }
    if (state != PUT_BEGUN)
        return failed + (state == PUT_FAILED);
    if (start(t, f, &item->err))
        return failed + (put_end(t->store, &f->put, -1) != 0);
    if (t->count++ == 0)
        io_begin(&t->io, t->store->io);
    io_add(&t->io, &f->io);
    struct entry *e = f->put.entry;
    if (!e->has_crc)
        e->crc32c = mcfs_crc32c(0, item->data, entry_size(e));
    e->has_crc = true;
    return failed;
}

size_t batch_land(struct batch *t)
{
    return land(t);
}

size_t batch_end(struct batch *t)
{
    size_t failed = land(t);
    free(t->flights);
    return failed;
}
