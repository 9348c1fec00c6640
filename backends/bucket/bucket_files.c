/* SPDX-License-Identifier: Apache-2.0 */
/* Buckets as files: names, descriptors, logs, and what is set aside. */
#include "backends/bucket/bucket.h"

#include "common/cleanup.h"
#include "common/file.h"
#include "common/log.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <sys/stat.h>
#include <time.h>

void bucket_path(const struct store *s, uint64_t id, const char *suffix, char *out, size_t cap)
{
    snprintf(out, cap, "%s/%" PRIu64 ".%s", s->dir, id, suffix);
}

uint64_t bucket_next_id(struct store *s)
{
    /* Mooncake's ids: seconds and a sequence number, and never one that was used before. */
    uint64_t now = (uint64_t)time(NULL) << 12;
    MCFS_LOCK_SCOPE(&s->lock);
    if (s->next_id < now)
        s->next_id = now;
    return s->next_id++;
}

void store_names_changed(struct store *s)
{
    MCFS_LOCK_SCOPE(&s->lock);
    s->names_dirty = true;
}

struct bucket *bucket_add(struct store *s, uint64_t id)
{
    struct bucket *b = bucket_alloc(sizeof(*b));
    if (!b)
        return NULL;
    b->id = id;
    b->data_fd = b->log_fd = -1;
    pthread_mutex_init(&b->lock, NULL);
    MCFS_LOCK_SCOPE(&s->lock);
    b->next = s->buckets;
    if (b->next)
        b->next->prev = b;
    s->buckets = b;
    if (s->next_id <= id)
        s->next_id = id + 1;
    atomic_fetch_add(&s->bucket_count, 1);
    return b;
}

void bucket_free(struct store *s, struct bucket *b)
{
    {
        MCFS_LOCK_SCOPE(&s->lock);
        if (b->prev)
            b->prev->next = b->next;
        else
            s->buckets = b->next;
        if (b->next)
            b->next->prev = b->prev;
        s->open_fds -= b->data_fd >= 0;
    }
    if (!b->removed)
        atomic_fetch_sub(&s->bucket_count, 1);
    if (b->data_fd >= 0)
        close(b->data_fd);
    if (b->log_fd >= 0)
        close(b->log_fd);
    pthread_mutex_destroy(&b->lock);
    bucket_dealloc(b);
}

/* ---- data files ---- */

/* The store's lock is held.  Each bucket gets a second chance, so that busy ones stay. */
static void trim_to(struct store *s, uint32_t limit)
{
    for (int round = 0; round < 2 && s->open_fds > limit; round++) {
        for (struct bucket *b = s->buckets; b && s->open_fds > limit; b = b->next) {
            if (pthread_mutex_trylock(&b->lock)) /* in use, or locked by whoever calls us */
                continue;
            bool idle = b->data_fd >= 0 && !b->data_users && !b->is_open && !b->writers;
            if (idle && !b->data_recent) {
                close(b->data_fd);
                b->data_fd = -1;
                s->open_fds--;
            }
            b->data_recent = false;
            pthread_mutex_unlock(&b->lock);
        }
    }
}

void fd_cache_trim(struct store *s)
{
    MCFS_LOCK_SCOPE(&s->lock);
    if (s->open_fds > s->fds_max)
        trim_to(s, s->fds_max / 2); /* so that this walk is rare */
}

int bucket_hold_data(struct store *s, struct bucket *b, struct mcfs_error *err)
{
    if (b->data_fd < 0) {
        char path[PATH_MAX];
        int flags = (s->config.read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC;
        bucket_path(s, b->id, "bucket", path, sizeof(path));
        int fd = open(path, flags);
        MCFS_LOCK_SCOPE(&s->lock);
        if (fd < 0 && errno == EMFILE) {
            trim_to(s, 0);
            fd = open(path, flags);
        }
        if (fd < 0)
            return mcfs_fail_errno(err, errno, "%s", path);
        b->data_fd = fd;
        s->open_fds++;
    }
    b->data_recent = true;
    b->data_users++;
    return 0;
}

void bucket_release_data(struct bucket *b)
{
    b->data_users--;
}

/* ---- what is to be synced ---- */

void bucket_mark_dirty(struct store *s, struct bucket *b, bool data, bool log)
{
    b->data_dirty |= data;
    b->log_dirty |= log;
    MCFS_LOCK_SCOPE(&s->lock);
    if (b->listed_dirty)
        return;
    if (s->dirty_count == s->dirty_cap) {
        size_t cap = s->dirty_cap ? s->dirty_cap * 2 : 64;
        struct bucket **dirty = realloc(s->dirty, cap * sizeof(struct bucket *));
        if (!dirty)
            return; /* tried again with the next change */
        s->dirty = dirty;
        s->dirty_cap = cap;
    }
    s->dirty[s->dirty_count++] = b;
    b->listed_dirty = true;
}

/* ---- logs ---- */

static void log_path(const struct store *s, const struct bucket *b, char *out, size_t cap)
{
    bucket_path(s, b->id, b->log_is_journal ? "journal" : "sum", out, cap);
}

int bucket_create_log(struct store *s, struct bucket *b, bool journal, struct mcfs_error *err)
{
    char path[PATH_MAX];
    _cleanup_buf_ struct mcfs_buf header = MCFS_BUF_INIT;
    b->log_is_journal = journal;
    log_path(s, b, path, sizeof(path));
    _cleanup_fd_ int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0)
        return mcfs_fail_errno(err, errno, "%s", path);
    log_put_header(&header, b->id);
    if (header.failed || mcfs_pwrite_full(fd, header.data, header.len, 0)) {
        mcfs_fail_errno(err, header.failed ? ENOMEM : errno, "%s", path);
        unlink(path);
        return -1;
    }
    b->log_fd = mcfs_steal_fd(&fd);
    b->log_end = header.len;
    b->has_log = true;
    store_names_changed(s);
    return 0;
}

static int open_log(struct store *s, struct bucket *b, struct mcfs_error *err)
{
    char path[PATH_MAX];
    if (!b->has_log)
        return b->foreign ? bucket_rewrite_log(s, b, err) : bucket_create_log(s, b, false, err);
    log_path(s, b, path, sizeof(path));
    b->log_fd = open(path, O_RDWR | O_CLOEXEC);
    return b->log_fd < 0 ? mcfs_fail_errno(err, errno, "%s", path) : 0;
}

int bucket_append_log(struct store *s, struct bucket *b, const void *data, size_t len,
                      struct mcfs_error *err)
{
    if (b->log_fd < 0 && open_log(s, b, err))
        return -1;
    int rc = 0;
    if (mcfs_pwrite_full(b->log_fd, data, len, b->log_end)) {
        rc = mcfs_fail_errno(err, errno, "log of bucket %" PRIu64, b->id);
        /* What was written of it must not end up in front of the next record. */
        if (ftruncate(b->log_fd, (off_t)b->log_end))
            mcfs_warning("log of bucket %" PRIu64 ": %s", b->id, strerror(errno));
    } else {
        b->log_end += len;
        bucket_mark_dirty(s, b, false, true);
    }
    /* Only the open bucket is logged to all the time. */
    if (!b->is_open) {
        close(b->log_fd);
        b->log_fd = -1;
    }
    return rc;
}

/* ---- the end of a bucket ---- */

/* Nobody reads the removed file any more: its pages are free now, not at the next flush. */
static void close_data(struct store *s, struct bucket *b)
{
    int fd;
    {
        MCFS_LOCK_SCOPE(&s->lock);
        fd = b->data_users ? -1 : b->data_fd;
        if (fd < 0)
            return;
        b->data_fd = -1;
        s->open_fds--;
    }
    close(fd);
}

void bucket_remove_files(struct store *s, struct bucket *b)
{
    /* The log goes last: one that is left alone is recognised as the rest of a removed bucket. */
    static const char *const suffixes[] = {"meta", "bucket", "sum", "journal"};
    for (size_t i = 0; i < MCFS_ARRAY_SIZE(suffixes); i++) {
        char path[PATH_MAX];
        bucket_path(s, b->id, suffixes[i], path, sizeof(path));
        if (unlink(path) && errno != ENOENT)
            mcfs_warning("%s: %s", path, strerror(errno));
    }
    close_data(s, b);
    b->removed = true;
    b->has_meta = b->meta_stale = b->has_gaps = false;
    space_return(s, b->used_bytes);
    b->used_bytes = 0;
    atomic_fetch_sub(&s->bucket_count, 1);
    store_names_changed(s);
    bucket_mark_dirty(s, b, false, false);
}

void set_aside(struct store *s, const char *name, const char *why)
{
    char from[PATH_MAX], to[PATH_MAX];
    snprintf(from, sizeof(from), "%s/%s", s->dir, name);
    if (s->config.read_only) {
        bool ours = name[0] >= '0' && name[0] <= '9' && strchr(name, '.');
        struct finding f = {.kind = ours ? FINDING_INDEX : FINDING_UNKNOWN,
                            .repair = REPAIR_RECOVER,
                            .file = name,
                            .key = {"", 0},
                            .what = why};
        if (!store_report(s, &f))
            mcfs_warning("%s: %s", from, why);
        return;
    }
    snprintf(to, sizeof(to), "%s/lost+found", s->dir);
    if (mkdir(to, 0755) && errno != EEXIST)
        mcfs_warning("%s: %s", to, strerror(errno));
    for (int i = 0; i < 1000; i++) {
        if (i == 0)
            snprintf(to, sizeof(to), "%s/lost+found/%s", s->dir, name);
        else
            snprintf(to, sizeof(to), "%s/lost+found/%s.%d", s->dir, name, i);
        if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0) {
            mcfs_warning("%s: %s; it is set aside in lost+found", from, why);
            store_names_changed(s);
            return;
        }
        if (errno != EEXIST)
            break;
    }
    mcfs_warning("%s: %s; it cannot be set aside: %s", from, why, strerror(errno));
}
