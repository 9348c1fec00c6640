/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Durability.  A sync makes the data of every changed bucket durable, says so in its log with a
 * SYNC record, makes the log durable, and then the directory.  Callers that come while one is under
 * way share the next: it covers whatever was done before it began.
 *
 * A flush does the rest as well, which nobody waits for: the .meta of buckets that were sealed or
 * lost objects, and after that, holes where objects were.  The order matters: a hole is punched
 * only when neither log nor .meta leads there after a power cut.
 *
 * Costs: two fdatasyncs per changed bucket; when many have changed, two syncfs for all of them.
 */
#include "backends/bucket/bucket.h"

#include "common/cleanup.h"
#include "common/file.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>

#define SYNCFS_FROM 32 /* changed buckets */

/* One bucket on its way through a sync. */
struct work {
    struct bucket *bucket;
    uint64_t log_before; /* puts recorded below are covered when the data is flushed */
    bool data, log, meta;
    bool failed;
    struct range *gaps;
    size_t gap_count;
};

struct sync {
    struct store *s;
    struct work *work;
    size_t count;
    bool full; /* a flush */
    int rc;
    struct mcfs_error *err; /* of the first failure */
};

/* Where the error of the next failure goes. */
static struct mcfs_error *err_of(struct sync *y)
{
    return y->rc == 0 ? y->err : NULL;
}

static void fail(struct sync *y, struct work *w)
{
    y->rc = -1;
    w->failed = true;
}

/* ---- what is to be done ---- */

static int take_dirty(struct sync *y, bool *names)
{
    struct store *s = y->s;
    MCFS_LOCK_SCOPE(&s->lock);
    *names = s->names_dirty;
    y->work = s->dirty_count ? calloc(s->dirty_count, sizeof(*y->work)) : NULL;
    if (s->dirty_count && !y->work)
        return mcfs_fail_errno(y->err, ENOMEM, "sync");
    for (size_t i = 0; i < s->dirty_count; i++) {
        y->work[i].bucket = s->dirty[i];
        s->dirty[i]->listed_dirty = false;
    }
    y->count = s->dirty_count;
    s->dirty_count = 0;
    s->names_dirty = false;
    return 0;
}

static void plan(struct sync *y, struct work *w)
{
    struct bucket *b = w->bucket;
    MCFS_LOCK_SCOPE(&b->lock);
    if (b->removed)
        return;
    w->log_before = b->log_end;
    w->data = b->data_dirty;
    b->data_dirty = false;
    if (!y->full || !b->has_gaps)
        return;
    w->gaps = bucket_gaps(b, &w->gap_count);
    b->has_gaps = !w->gaps && !b->keep_gaps;
}

/* ---- files, one by one or all at once ---- */

/* A descriptor of our own, so that nothing is locked while the disk works. */
static int sync_file(struct store *s, const struct bucket *b, const char *suffix)
{
    char path[PATH_MAX];
    bucket_path(s, b->id, suffix, path, sizeof(path));
    _cleanup_fd_ int fd = open(path, O_RDWR | O_CLOEXEC);
    return fd < 0 ? -1 : fdatasync(fd);
}

int bucket_sync_log(struct store *s, const struct bucket *b)
{
    /* It may be renamed under us, in one direction only. */
    if (sync_file(s, b, "journal") == 0)
        return 0;
    return errno == ENOENT ? sync_file(s, b, "sum") : -1;
}

static bool is_removed(struct bucket *b)
{
    MCFS_LOCK_SCOPE(&b->lock);
    return b->removed;
}

static size_t count_of(const struct sync *y, bool logs)
{
    size_t n = 0;
    for (size_t i = 0; i < y->count; i++)
        n += logs ? y->work[i].log || y->work[i].meta : y->work[i].data;
    return n;
}

static void flush_data(struct sync *y)
{
    struct store *s = y->s;
    bool all = count_of(y, false) >= SYNCFS_FROM;
    int all_failed = all && syncfs(s->dir_fd) ? errno : 0;
    for (size_t i = 0; i < y->count; i++) {
        struct work *w = &y->work[i];
        struct bucket *b = w->bucket;
        if (!w->data)
            continue;
        errno = all_failed;
        if ((all ? !all_failed : sync_file(s, b, "bucket") == 0) || is_removed(b))
            continue;
        int errnum = errno;
        mcfs_fail_errno(err_of(y), errnum, "bucket %" PRIu64, b->id);
        fail(y, w);
        w->data = false;
        MCFS_LOCK_SCOPE(&b->lock);
        b->data_dirty = true;
        /* The kernel may have dropped what it could not write, and does not say so twice. */
        b->never_sure = true;
    }
}

static void flush_logs(struct sync *y)
{
    struct store *s = y->s;
    bool all = count_of(y, true) >= SYNCFS_FROM;
    int all_failed = all && syncfs(s->dir_fd) ? errno : 0;
    for (size_t i = 0; i < y->count; i++) {
        struct work *w = &y->work[i];
        struct bucket *b = w->bucket;
        errno = all_failed;
        bool log_done = !w->log || (all ? !all_failed : bucket_sync_log(s, b) == 0);
        bool meta_done = !w->meta || (all ? !all_failed : sync_file(s, b, "meta.tmp") == 0);
        if ((log_done && meta_done) || is_removed(b))
            continue;
        int errnum = errno;
        mcfs_fail_errno(err_of(y), errnum, "log of bucket %" PRIu64, b->id);
        fail(y, w);
        MCFS_LOCK_SCOPE(&b->lock);
        b->log_dirty = true;
        b->meta_stale |= w->meta;
        w->meta = false;
    }
}

/* ---- log and .meta ---- */

/* Says in the log what of the data is durable now; takes note of what of the log is not. */
static void mark_log(struct sync *y, struct work *w)
{
    struct store *s = y->s;
    struct bucket *b = w->bucket;
    MCFS_LOCK_SCOPE(&b->lock);
    if (b->removed || w->failed)
        return;
    if (w->data && b->has_log && !b->never_sure) {
        _cleanup_buf_ struct mcfs_buf record = MCFS_BUF_INIT;
        log_put_record(&record, &(struct log_record){.type = LOG_SYNC, .synced_to = w->log_before});
        if (record.failed || bucket_append_log(s, b, record.data, record.len, err_of(y))) {
            fail(y, w);
            return;
        }
    }
    if (y->full && !b->is_open && bucket_log_is_long(b)) {
        if (bucket_rewrite_log(s, b, err_of(y)))
            fail(y, w);
        if (b->log_fd >= 0)
            close(b->log_fd);
        b->log_fd = -1;
    }
    w->log = b->log_dirty;
    b->log_dirty = false;
}

/* Writes `<id>.meta.tmp`; it gets its name when it is durable. */
static void write_meta(struct sync *y, struct work *w)
{
    struct store *s = y->s;
    struct bucket *b = w->bucket;
    _cleanup_buf_ struct mcfs_buf meta = MCFS_BUF_INIT;
    char path[PATH_MAX];
    {
        MCFS_LOCK_SCOPE(&b->lock);
        if (b->removed || w->failed || b->is_open || !b->meta_stale)
            return;
        bucket_make_meta(b, &meta);
        b->meta_stale = false;
    }
    bucket_path(s, b->id, "meta.tmp", path, sizeof(path));
    _cleanup_fd_ int fd =
        meta.failed ? -1 : open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    w->meta = fd >= 0 && mcfs_pwrite_full(fd, meta.data, meta.len, 0) == 0;
    if (w->meta)
        return;
    mcfs_fail_errno(err_of(y), meta.failed ? ENOMEM : errno, "%s", path);
    fail(y, w);
    MCFS_LOCK_SCOPE(&b->lock);
    b->meta_stale = true;
}

static void name_meta(struct sync *y, struct work *w)
{
    struct store *s = y->s;
    struct bucket *b = w->bucket;
    char temporary[PATH_MAX], path[PATH_MAX];
    bucket_path(s, b->id, "meta.tmp", temporary, sizeof(temporary));
    bucket_path(s, b->id, "meta", path, sizeof(path));
    MCFS_LOCK_SCOPE(&b->lock);
    if (b->removed) {
        unlink(temporary);
        return;
    }
    if (rename(temporary, path)) {
        mcfs_fail_errno(err_of(y), errno, "%s", path);
        fail(y, w);
        b->meta_stale = true;
        return;
    }
    b->has_meta = true;
    store_names_changed(s);
}

/* ---- the end ---- */

static int sync_names(struct store *s, bool names, struct mcfs_error *err)
{
    {
        MCFS_LOCK_SCOPE(&s->lock);
        names |= s->names_dirty;
        s->names_dirty = false;
    }
    if (!names || fsync(s->dir_fd) == 0)
        return 0;
    int errnum = errno;
    store_names_changed(s);
    return mcfs_fail_errno(err, errnum, "%s", s->dir);
}

/* What is left to do keeps the bucket on the list; one that is gone is freed. */
static void let_go(struct sync *y, struct work *w)
{
    struct store *s = y->s;
    struct bucket *b = w->bucket;
    bool gone;
    {
        MCFS_LOCK_SCOPE(&b->lock);
        if (!b->removed && (w->failed || b->has_gaps || (b->meta_stale && !b->is_open) ||
                            (!b->is_open && bucket_log_is_long(b))))
            bucket_mark_dirty(s, b, false, false);
        MCFS_LOCK_SCOPE(&s->lock);
        gone = b->removed && b->objects == 0 && b->writers == 0 && b->arrivals == 0 &&
               !b->listed_dirty && !b->listed_thin;
        if (b->removed && !gone && !b->listed_dirty && s->dirty_count < s->dirty_cap) {
            s->dirty[s->dirty_count++] = b; /* somebody still looks at it */
            b->listed_dirty = true;
        }
    }
    free(w->gaps);
    if (gone)
        bucket_free(s, b);
}

/* The sync lock is held. */
static int sync_all(struct store *s, bool full, struct mcfs_error *err)
{
    struct sync y = {.s = s, .full = full, .err = err};
    bool names;
    if (take_dirty(&y, &names))
        return -1;
    for (size_t i = 0; i < y.count; i++)
        plan(&y, &y.work[i]);
    flush_data(&y);
    for (size_t i = 0; i < y.count; i++)
        mark_log(&y, &y.work[i]);
    for (size_t i = 0; full && i < y.count; i++)
        write_meta(&y, &y.work[i]);
    flush_logs(&y);
    for (size_t i = 0; i < y.count; i++)
        if (y.work[i].meta)
            name_meta(&y, &y.work[i]);
    /* Names last: what they lead to is durable by now.  Holes after that. */
    if (sync_names(s, names, err_of(&y)))
        y.rc = -1;
    for (size_t i = 0; i < y.count; i++) {
        struct work *w = &y.work[i];
        if (y.rc == 0)
            bucket_punch(s, w->bucket, w->gaps, w->gap_count);
        else
            w->failed = true; /* comes again */
        if (y.rc && w->gap_count) {
            MCFS_LOCK_SCOPE(&w->bucket->lock);
            w->bucket->has_gaps = true;
        }
        let_go(&y, w);
    }
    free(y.work);
    atomic_fetch_add(&s->syncs, 1);
    return y.rc;
}

static int sync_some(void *store, struct mcfs_error *err)
{
    return sync_all(store, false, err);
}

static int sync_full(void *store, struct mcfs_error *err)
{
    return sync_all(store, true, err);
}

int store_sync(struct mcfs_backend *base, struct mcfs_error *err)
{
    struct store *s = (struct store *)base;
    return s->config.read_only ? 0 : shared_sync_join(&s->sync, sync_some, s, err);
}

int store_flush(void *arg, struct mcfs_error *err)
{
    struct store *s = arg;
    return shared_sync_run(&s->sync, sync_full, s, err);
}

bool store_has_work(void *store)
{
    struct store *s = store;
    MCFS_LOCK_SCOPE(&s->lock);
    return s->dirty_count > 0 || s->names_dirty;
}
