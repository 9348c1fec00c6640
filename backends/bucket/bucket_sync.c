/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Durability.  A sync makes the data of every changed bucket durable, says so in its log with a
 * SYNC record, makes the log durable, and then the directory.  Callers that come while one is under
 * way share the next: it covers whatever was done before it began.
 */
#include "backends/bucket/bucket.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/cond.h"
#include "common/log.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>

#define FLUSH_DEFAULT_MS 5000

/* Opens what has to be flushed; descriptors of our own, so that nothing is locked while the disk
 * works. */
static int open_part(struct store *s, const struct bucket *b, const char *suffix)
{
    char path[PATH_MAX];
    bucket_path(s, b->id, suffix, path, sizeof(path));
    return open(path, O_RDWR | O_CLOEXEC);
}

static int sync_data(struct store *s, struct bucket *b, struct mcfs_error *err)
{
    {
        MCFS_LOCK_SCOPE(&b->lock);
        if (b->removed || !b->data_dirty)
            return 0;
        b->data_dirty = false;
    }
    _cleanup_fd_ int fd = open_part(s, b, "bucket");
    if (fd < 0 && errno == ENOENT)
        return 0; /* emptied meanwhile */
    if (fd < 0 || fdatasync(fd)) {
        int errnum = errno;
        MCFS_LOCK_SCOPE(&b->lock);
        b->data_dirty = true;
        return mcfs_fail_errno(err, errnum, "bucket %" PRIu64, b->id);
    }
    return 1;
}

/* What of the log was there before the data was flushed may be called durable: the record goes
 * behind it only when nothing was put in between. */
static int sync_bucket(struct store *s, struct bucket *b, struct mcfs_error *err)
{
    uint64_t log_before;
    {
        MCFS_LOCK_SCOPE(&b->lock);
        log_before = b->log_end;
    }
    int flushed = sync_data(s, b, err);
    if (flushed < 0)
        return -1;
    bool log_dirty;
    {
        MCFS_LOCK_SCOPE(&b->lock);
        if (b->removed)
            return 0;
        if (flushed && b->has_log && b->log_end == log_before && b->writers == 0) {
            _cleanup_buf_ struct mcfs_buf record = MCFS_BUF_INIT;
            log_put_record(&record, &(struct log_record){.type = LOG_SYNC});
            if (record.failed || bucket_append_log(s, b, record.data, record.len, err))
                return -1;
        }
        if (b->meta_missing && !b->is_open && !b->sealing && bucket_write_meta(s, b, err))
            return -1;
        log_dirty = b->log_dirty;
        b->log_dirty = false;
    }
    if (!log_dirty)
        return 0;
    _cleanup_fd_ int fd = open_part(s, b, "sum");
    if (fd < 0)
        fd = open_part(s, b, "journal");
    if (fd < 0) /* sealed between the two */
        fd = open_part(s, b, "sum");
    if ((fd < 0 && errno != ENOENT) || (fd >= 0 && fdatasync(fd))) {
        int errnum = errno;
        MCFS_LOCK_SCOPE(&b->lock);
        b->log_dirty = true;
        return mcfs_fail_errno(err, errnum, "log of bucket %" PRIu64, b->id);
    }
    return 0;
}

/* The buckets that are dirty now; the list starts anew. */
static struct bucket **take_dirty(struct store *s, size_t *count, bool *names)
{
    MCFS_LOCK_SCOPE(&s->lock);
    struct bucket **list = s->dirty;
    *count = s->dirty_count;
    *names = s->names_dirty;
    s->names_dirty = false;
    s->dirty = NULL;
    s->dirty_count = s->dirty_cap = 0;
    for (size_t i = 0; i < *count; i++)
        list[i]->listed_dirty = false;
    return list;
}

/* Its files are gone and nobody can come to it any more. */
static bool is_finished(struct store *s, struct bucket *b)
{
    MCFS_LOCK_SCOPE(&b->lock);
    MCFS_LOCK_SCOPE(&s->lock);
    return b->removed && b->objects == 0 && b->writers == 0 && !b->listed_dirty;
}

static int sync_all(struct store *s, struct mcfs_error *err)
{
    size_t count;
    bool names;
    int rc = 0;
    struct bucket **list = take_dirty(s, &count, &names);
    for (size_t i = 0; i < count; i++) {
        struct bucket *b = list[i];
        if (sync_bucket(s, b, rc == 0 ? err : NULL)) {
            rc = -1;
            MCFS_LOCK_SCOPE(&b->lock);
            bucket_mark_dirty(s, b, false, false);
        } else if (is_finished(s, b)) {
            bucket_free(s, b);
        }
    }
    /* Names last: what they lead to is durable by now. */
    MCFS_LOCK_SCOPE(&s->lock);
    names |= s->names_dirty;
    if (rc == 0 && names) {
        s->names_dirty = false;
        if (fsync(s->dir_fd)) {
            s->names_dirty = true;
            rc = mcfs_fail_errno(err, errno, "%s", s->dir);
        }
    }
    atomic_fetch_add(&s->syncs, 1);
    free(list);
    return rc;
}

int store_sync(struct mcfs_backend *base, struct mcfs_error *err)
{
    struct store *s = (struct store *)base;
    uint64_t mine = atomic_fetch_add(&s->sync_asked, 1) + 1;
    MCFS_LOCK_SCOPE(&s->sync_lock);
    if (s->sync_done >= mine)
        return 0;
    uint64_t covers = atomic_load(&s->sync_asked);
    if (sync_all(s, err))
        return -1;
    s->sync_done = covers;
    return 0;
}

static void *flusher_main(void *arg)
{
    struct store *s = arg;
    uint32_t ms = s->config.flush_interval_ms ? s->config.flush_interval_ms : FLUSH_DEFAULT_MS;
    bool complained = false;
    pthread_mutex_lock(&s->flusher_lock);
    while (!s->stopping) {
        mcfs_cond_wait_until(&s->flusher_wake, &s->flusher_lock,
                             mcfs_mono_ns() + (int64_t)ms * 1000000);
        if (s->stopping)
            break;
        pthread_mutex_unlock(&s->flusher_lock);
        bool work;
        {
            MCFS_LOCK_SCOPE(&s->lock);
            work = s->dirty_count || s->names_dirty;
        }
        struct mcfs_error err = MCFS_ERROR_INIT;
        if (work && store_sync(&s->base, &err)) {
            if (!complained)
                mcfs_error("background sync: %s", err.msg);
            complained = true;
        } else {
            complained = false;
        }
        pthread_mutex_lock(&s->flusher_lock);
    }
    pthread_mutex_unlock(&s->flusher_lock);
    return NULL;
}

int flusher_start(struct store *s, struct mcfs_error *err)
{
    int rc = pthread_create(&s->flusher, NULL, flusher_main, s);
    if (rc)
        return mcfs_fail_errno(err, rc, "flusher thread");
    s->flusher_started = true;
    return 0;
}

void flusher_stop(struct store *s)
{
    if (!s->flusher_started)
        return;
    pthread_mutex_lock(&s->flusher_lock);
    s->stopping = true;
    pthread_cond_broadcast(&s->flusher_wake);
    pthread_mutex_unlock(&s->flusher_lock);
    pthread_join(s->flusher, NULL);
    s->flusher_started = false;
}
