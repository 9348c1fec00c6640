/* SPDX-License-Identifier: Apache-2.0 */
/* Putting objects: small ones into the open bucket, large ones into a bucket of their own. */
#include "backends/bucket/bucket_batch.h"

#include "backends/value.h"
#include "common/cleanup.h"
#include "common/crc32c.h"
#include "common/file.h"
#include "common/log.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <sys/stat.h>
#include <sys/uio.h>

void entry_record(const struct entry *e, struct mcfs_buf *out)
{
    struct log_record r = {.type = LOG_PUT,
                           .version = e->version,
                           .offset = entry_offset(e),
                           .size = entry_size(e),
                           .attr = entry_attr(e),
                           .crc32c = e->crc32c,
                           .data_type = e->data_type,
                           .has_crc = e->has_crc,
                           .key_inline = e->key_inline,
                           .bare = e->bare,
                           .moved = e->moved,
                           .key = entry_key(e)};
    log_put_record(out, &r);
}

/* ---- the open bucket ---- */

static struct bucket *open_new(struct store *s, struct mcfs_error *err)
{
    char path[PATH_MAX];
    struct bucket *b = bucket_add(s, bucket_next_id(s));
    if (!b) {
        mcfs_fail_errno(err, ENOMEM, "bucket");
        return NULL;
    }
    /* The log first: a log without data is an unfinished beginning, data without a log would be a
     * stranger's. */
    if (bucket_create_log(s, b, true, err)) {
        bucket_free(s, b);
        return NULL;
    }
    bucket_path(s, b->id, "bucket", path, sizeof(path));
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0) {
        mcfs_fail_errno(err, errno, "%s", path);
        bucket_path(s, b->id, "journal", path, sizeof(path));
        unlink(path);
        bucket_free(s, b);
        return NULL;
    }
    MCFS_LOCK_SCOPE(&b->lock);
    b->is_open = true;
    MCFS_LOCK_SCOPE(&s->lock);
    b->data_fd = fd;
    s->open_fds++;
    s->names_dirty = true;
    return b;
}

/* The open bucket, with an arrival announced so that it stays while we go for its lock. */
static struct bucket *arrive(struct store *s, struct mcfs_error *err)
{
    {
        MCFS_LOCK_SCOPE(&s->lock);
        if (s->current) {
            s->current->arrivals++;
            return s->current;
        }
    }
    MCFS_LOCK_SCOPE(&s->open_lock);
    struct bucket *b;
    {
        MCFS_LOCK_SCOPE(&s->lock);
        b = s->current; /* another thread was faster */
        if (b)
            b->arrivals++;
    }
    if (b || !(b = open_new(s, err)))
        return b;
    MCFS_LOCK_SCOPE(&s->lock);
    b->arrivals++;
    s->current = b;
    return b;
}

struct bucket *bucket_reserve(struct store *s, uint64_t bytes, uint64_t *offset,
                              struct mcfs_error *err)
{
    for (;;) {
        struct bucket *b = arrive(s, err);
        if (!b)
            return NULL;
        pthread_mutex_lock(&b->lock);
        bool usable = b->is_open && !b->sealing;
        if (usable) {
            *offset = b->data_end;
            b->data_end += bytes;
            b->keys++;
            b->writers++;
            if (b->data_end >= s->config.bucket_size_limit ||
                b->keys >= s->config.bucket_keys_limit)
                bucket_stop_writing(s, b);
        }
        pthread_mutex_lock(&s->lock);
        b->arrivals--;
        pthread_mutex_unlock(&s->lock);
        pthread_mutex_unlock(&b->lock);
        if (usable)
            return b;
    }
}

static int write_object(const struct bucket *b, const struct entry *e, const void *data,
                        struct mcfs_error *err)
{
    struct mcfs_slice key = entry_key(e);
    struct iovec iov[2] = {{(void *)(uintptr_t)key.data, key.len},
                           {(void *)(uintptr_t)data, entry_size(e)}};
    size_t whole = key.len + entry_size(e), done;
    ssize_t n;
    do
        n = pwritev(b->data_fd, iov, 2, (off_t)entry_start(e));
    while (n < 0 && errno == EINTR);
    if (n >= 0 && (size_t)n == whole)
        return 0;
    if (n < 0)
        return mcfs_fail_errno(err, errno, "bucket %" PRIu64, b->id);
    /* Interrupted, or nearly full: go on piecewise. */
    done = (size_t)n;
    if (done < key.len) {
        if (mcfs_pwrite_full(b->data_fd, key.data + done, key.len - done, entry_start(e) + done))
            return mcfs_fail_errno(err, errno, "bucket %" PRIu64, b->id);
        done = key.len;
    }
    done -= key.len;
    if (mcfs_pwrite_full(b->data_fd, (const char *)data + done, entry_size(e) - done,
                         entry_offset(e) + done))
        return mcfs_fail_errno(err, errno, "bucket %" PRIu64, b->id);
    return 0;
}

void bucket_give_up_place(struct store *s, struct bucket *b, uint64_t offset, uint64_t bytes)
{
    if (b->data_end == offset + bytes) {
        b->data_end = offset;
        if (ftruncate(b->data_fd, (off_t)offset))
            mcfs_warning("bucket %" PRIu64 ": %s", b->id, strerror(errno));
    } else {
        b->has_gaps = true;
        bucket_mark_dirty(s, b, false, false);
    }
    space_return(s, bytes);
}

void bucket_end_writing(struct store *s, struct bucket *b)
{
    if (--b->writers == 0 && b->sealing)
        bucket_seal(s, b);
}

static int append_object(struct store *s, struct entry *e, const void *data, struct mcfs_error *err)
{
    uint64_t offset, key_len = entry_key(e).len, whole = key_len + entry_size(e);
    struct bucket *b = bucket_reserve(s, whole, &offset, err);
    if (!b) {
        space_return(s, whole);
        return -1;
    }
    entry_set_bucket(e, b);
    entry_set_offset(e, offset + key_len);
    e->key_inline = true;
    int rc = write_object(b, e, data, err);
    _cleanup_buf_ struct mcfs_buf record = MCFS_BUF_INIT;
    entry_record(e, &record);

    MCFS_LOCK_SCOPE(&b->lock);
    if (rc == 0 && record.failed)
        rc = mcfs_fail_errno(err, ENOMEM, "bucket %" PRIu64, b->id);
    if (rc == 0)
        rc = bucket_append_log(s, b, record.data, record.len, err);
    if (rc == 0) {
        b->used_bytes += whole;
        bucket_link(s, b, e);
        bucket_mark_dirty(s, b, true, true);
    } else {
        bucket_give_up_place(s, b, offset, whole);
    }
    bucket_end_writing(s, b);
    return rc;
}

/* ---- a bucket of its own ---- */

static const char *staging_of(const struct mcfs_backend_put *item)
{
    return item->data ? NULL : item->staging_path;
}

/* The staging file becomes the data file; nothing is left of it on failure. */
static int place_file(const struct mcfs_backend_put *item, const char *path, struct mcfs_error *err)
{
    const char *staging = item->staging_path;
    if (renameat2(AT_FDCWD, staging, AT_FDCWD, path, RENAME_NOREPLACE) == 0)
        return 0;
    if (errno != EXDEV)
        return mcfs_fail_errno(err, errno, "%s", staging);
    _cleanup_fd_ int to = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (to < 0)
        return mcfs_fail_errno(err, errno, "%s", path);
    _cleanup_fd_ int from = open(staging, O_RDONLY | O_CLOEXEC);
    if (from < 0 || mcfs_copy_range(from, 0, to, 0, item->object.size)) {
        mcfs_fail_errno(err, errno, "%s", path);
        unlink(path);
        return -1;
    }
    unlink(staging);
    return 0;
}

void bucket_link_single(struct store *s, struct bucket *b, struct entry *e)
{
    b->used_bytes = entry_size(e);
    b->log_base = b->log_end;
    b->meta_stale = true;
    bucket_link(s, b, e);
    bucket_mark_dirty(s, b, true, true);
    store_names_changed(s);
}

/* The caller holds the bucket's lock. */
static int fill_single(struct store *s, struct bucket *b, struct entry *e,
                       const struct mcfs_backend_put *item, struct mcfs_error *err)
{
    char path[PATH_MAX];
    _cleanup_buf_ struct mcfs_buf record = MCFS_BUF_INIT;
    entry_record(e, &record);
    if (record.failed)
        return mcfs_fail_errno(err, ENOMEM, "bucket %" PRIu64, b->id);
    if (bucket_append_log(s, b, record.data, record.len, err))
        return -1;
    bucket_path(s, b->id, "bucket", path, sizeof(path));
    if (place_file(item, path, err)) {
        bucket_path(s, b->id, "sum", path, sizeof(path));
        unlink(path);
        return -1;
    }
    bucket_link_single(s, b, e);
    return 0;
}

void bucket_give_up_single(struct store *s, struct bucket *b, uint64_t size)
{
    /* A flush may know the bucket by now: it is the one to free it. */
    space_return(s, size);
    b->removed = true;
    atomic_fetch_sub(&s->bucket_count, 1);
    bucket_mark_dirty(s, b, false, false);
}

static int store_single(struct store *s, struct entry *e, const struct mcfs_backend_put *item,
                        struct mcfs_error *err)
{
    struct bucket *b = bucket_add(s, bucket_next_id(s));
    if (!b) {
        space_return(s, entry_size(e));
        return mcfs_fail_errno(err, ENOMEM, "bucket");
    }
    MCFS_LOCK_SCOPE(&b->lock);
    b->single = true;
    b->keys = 1;
    b->data_end = entry_size(e);
    entry_set_bucket(e, b);
    entry_set_offset(e, 0);
    if (fill_single(s, b, e, item, err) == 0)
        return 0;
    bucket_give_up_single(s, b, entry_size(e));
    return -1;
}

/* ---- put ---- */

/* Checksum of a staging file that came without one. */
static int checksum_file(const char *path, uint64_t size, uint32_t *crc, struct mcfs_error *err)
{
    _cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct value_place v = {fd, 0, size};
    *crc = 0;
    if (fd < 0)
        return mcfs_fail_errno(err, errno, "%s", path);
    return value_checksum(&v, crc, err) ? mcfs_error_prefix(err, "%s", path) : 0;
}

static int read_staging(const char *path, uint64_t size, char **data, struct mcfs_error *err)
{
    ssize_t n = mcfs_read_file_alloc(path, size, data, err);
    if (n >= 0 && (uint64_t)n != size)
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "%s: not %" PRIu64 " bytes", path, size);
    return n < 0 ? -1 : 0;
}

static int check_staging(const struct mcfs_backend_put *item, struct mcfs_error *err)
{
    struct stat st;
    if (stat(item->staging_path, &st))
        return mcfs_fail_errno(err, errno, "%s", item->staging_path);
    if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size != item->object.size)
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "%s: not a file of %" PRIu64 " bytes",
                         item->staging_path, item->object.size);
    return 0;
}

/* A staging file is used as it is when it is large enough for a bucket of its own. */
static int put_single(struct store *s, struct entry *e, const struct mcfs_backend_put *item,
                      struct mcfs_error *err)
{
    if (!e->has_crc && checksum_file(item->staging_path, entry_size(e), &e->crc32c, err))
        return -1;
    e->has_crc = true;
    return space_claim(s, entry_size(e), err) ? -1 : store_single(s, e, item, err);
}

static int put_small(struct store *s, struct entry *e, const struct mcfs_backend_put *item,
                     struct mcfs_error *err)
{
    _cleanup_free_ char *copy = NULL;
    const char *staging = staging_of(item);
    if (staging && read_staging(staging, entry_size(e), &copy, err))
        return -1;
    const void *data = item->data ? item->data : copy ? copy : "";
    if (!e->has_crc)
        e->crc32c = mcfs_crc32c(0, data, entry_size(e));
    e->has_crc = true;
    if (space_claim(s, entry_key(e).len + entry_size(e), err) || append_object(s, e, data, err))
        return -1;
    if (staging)
        unlink(staging);
    return 0;
}

static void describe(struct entry *e, const struct mcfs_object *o)
{
    e->version = o->version;
    entry_set_size(e, o->size);
    e->crc32c = o->crc32c;
    e->has_crc = o->has_crc;
    e->data_type = o->data_type;
    e->checked = GOOD;
}

static enum put_state refuse(struct bucket_put *p)
{
    mcfs_buf_free(&p->key);
    return PUT_FAILED;
}

enum put_state put_begin(struct store *s, struct bucket_put *p, struct mcfs_backend_put *item,
                         bool wait)
{
    const struct mcfs_object *o = &item->object;
    struct mcfs_error *err = &item->err;
    *p = (struct bucket_put){.item = item, .key = MCFS_BUF_INIT};
    if (s->config.read_only)
        mcfs_fail_errno(err, EROFS, "%s", s->dir);
    else if (o->size > ENTRY_PLACE_MAX / 2)
        mcfs_fail_errno(err, EFBIG, "%" PRIu64 " bytes", o->size);
    else if (!item->data && !item->staging_path && o->size > 0)
        mcfs_fail(err, MCFS_INVALID_PARAMS, "a put without data");
    if (err->code || storage_key(o->tenant, o->key, &p->key, err))
        return refuse(p);
    p->pending =
        (struct pending_put){.key = mcfs_slice(p->key.data, p->key.len), .version = o->version};
    p->stripe = index_stripe(s, p->pending.key);
    enum begin_state state = index_begin_put(p->stripe, &p->pending, wait);
    if (state != INDEX_BEGUN) {
        if (state == INDEX_STORED && staging_of(item))
            unlink(item->staging_path); /* it counts as consumed */
        mcfs_buf_free(&p->key);
        return state == INDEX_STORED ? PUT_DONE : PUT_BUSY;
    }
    p->entry = entry_new(p->pending.key, &o->attr, s->order.active);
    if (p->entry) {
        describe(p->entry, o);
        return PUT_BEGUN;
    }
    mcfs_fail_errno(err, ENOMEM, "index");
    put_end(s, p, -1);
    return PUT_FAILED;
}

int put_end(struct store *s, struct bucket_put *p, int rc)
{
    struct entry *e = p->entry;
    int index_rc = index_end_put(s, p->stripe, &p->pending, rc ? NULL : e);
    mcfs_buf_free(&p->key);
    if (rc) {
        entry_free(e);
        return -1;
    }
    if (index_rc) {
        {
            MCFS_LOCK_SCOPE(&entry_bucket(e)->lock);
            bucket_log_delete(s, e, NULL);
            entry_kill(s, e);
        }
        entry_reclaim(s, e);
        return mcfs_fail_errno(&p->item->err, ENOMEM, "index");
    }
    atomic_fetch_add_explicit(&s->puts, 1, memory_order_relaxed);
    return 0;
}

/* One that is no part of a batch. */
static enum put_state put_one(struct store *s, struct mcfs_backend_put *item, bool wait)
{
    struct bucket_put p;
    enum put_state state = put_begin(s, &p, item, wait);
    if (state != PUT_BEGUN)
        return state;
    struct mcfs_error *err = &item->err;
    bool large = item->object.size >= s->config.single_object_min_bytes;
    int rc = staging_of(item) ? check_staging(item, err) : 0;
    if (rc == 0)
        rc = large && staging_of(item) ? put_single(s, p.entry, item, err)
                                       : put_small(s, p.entry, item, err);
    return put_end(s, &p, rc) ? PUT_FAILED : PUT_DONE;
}

static size_t put_alone(struct store *s, struct batch *t, struct mcfs_backend_put *item)
{
    size_t failed = 0;
    enum put_state state = put_one(s, item, t->count == 0);
    if (state == PUT_BUSY) {
        failed = batch_land(t);
        state = put_one(s, item, true);
    }
    return failed + (state == PUT_FAILED);
}

size_t store_put(struct mcfs_backend *b, struct mcfs_backend_put *items, size_t n)
{
    struct store *s = (struct store *)b;
    struct batch t;
    size_t failed = 0;
    for (size_t i = 0; i < n; i++)
        items[i].err = (struct mcfs_error)MCFS_ERROR_INIT;
    if (batch_begin(&t, s, items, n)) {
        for (size_t i = 0; i < n; i++)
            mcfs_fail_errno(&items[i].err, ENOMEM, "put");
        return n;
    }
    for (size_t i = 0; i < n; i++)
        failed +=
            batch_takes(s, &items[i]) ? batch_add(&t, &items[i]) : put_alone(s, &t, &items[i]);
    return failed + batch_end(&t);
}
