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

#define OPEN_FDS_MAX 2048 /* data files kept open without a reader */

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

struct bucket *bucket_add(struct store *s, uint64_t id)
{
    struct bucket *b = calloc(1, sizeof(*b));
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
        for (size_t i = 0; b->listed_dirty && i < s->dirty_count; i++)
            if (s->dirty[i] == b)
                s->dirty[i--] = s->dirty[--s->dirty_count];
        s->open_fds -= b->data_fd >= 0;
    }
    atomic_fetch_sub(&s->bucket_count, 1);
    if (b->data_fd >= 0)
        close(b->data_fd);
    if (b->log_fd >= 0)
        close(b->log_fd);
    pthread_mutex_destroy(&b->lock);
    free(b);
}

void fd_cache_trim(struct store *s)
{
    MCFS_LOCK_SCOPE(&s->lock);
    if (s->open_fds <= OPEN_FDS_MAX)
        return;
    /* Down to half, so that this walk is rare.  A bucket that is locked is in use. */
    for (struct bucket *b = s->buckets; b && s->open_fds > OPEN_FDS_MAX / 2; b = b->next) {
        if (pthread_mutex_trylock(&b->lock))
            continue;
        if (b->data_fd >= 0 && !b->data_users && !b->is_open && !b->writers) {
            close(b->data_fd);
            b->data_fd = -1;
            s->open_fds--;
        }
        pthread_mutex_unlock(&b->lock);
    }
}

int bucket_hold_data(struct store *s, struct bucket *b, struct mcfs_error *err)
{
    if (b->data_fd < 0) {
        char path[PATH_MAX];
        bucket_path(s, b->id, "bucket", path, sizeof(path));
        int fd = open(path, (s->config.read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC);
        if (fd < 0)
            return mcfs_fail_errno(err, errno, "%s", path);
        b->data_fd = fd;
        MCFS_LOCK_SCOPE(&s->lock);
        s->open_fds++;
    }
    b->data_users++;
    return 0;
}

void bucket_release_data(struct store *s, struct bucket *b)
{
    (void)s;
    b->data_users--;
}

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

static int open_log(struct store *s, struct bucket *b, struct mcfs_error *err)
{
    char path[PATH_MAX];
    bucket_path(s, b->id, b->is_open || b->sealing ? "journal" : "sum", path, sizeof(path));
    b->log_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | (b->has_log ? 0 : O_EXCL), 0644);
    if (b->log_fd < 0)
        return mcfs_fail_errno(err, errno, "%s", path);
    if (b->has_log)
        return 0;
    _cleanup_buf_ struct mcfs_buf header = MCFS_BUF_INIT;
    log_put_header(&header, b->id);
    if (header.failed || mcfs_pwrite_full(b->log_fd, header.data, header.len, 0)) {
        mcfs_fail_errno(err, header.failed ? ENOMEM : errno, "%s", path);
        close(b->log_fd);
        b->log_fd = -1;
        unlink(path);
        return -1;
    }
    b->log_end = header.len;
    b->has_log = true;
    MCFS_LOCK_SCOPE(&s->lock);
    s->names_dirty = true;
    return 0;
}

int bucket_append_log(struct store *s, struct bucket *b, const void *data, size_t len,
                      struct mcfs_error *err)
{
    if (b->log_fd < 0 && open_log(s, b, err))
        return -1;
    if (mcfs_pwrite_full(b->log_fd, data, len, b->log_end)) {
        int errnum = errno;
        /* What was written of it is cut off again; what cannot be cut is skipped by its checksum.
         */
        if (ftruncate(b->log_fd, (off_t)b->log_end))
            mcfs_warning("log of bucket %" PRIu64 ": %s", b->id, strerror(errno));
        return mcfs_fail_errno(err, errnum, "log of bucket %" PRIu64, b->id);
    }
    b->log_end += len;
    bucket_mark_dirty(s, b, false, true);
    /* Only the open bucket is logged to all the time. */
    if (!b->is_open && !b->sealing) {
        close(b->log_fd);
        b->log_fd = -1;
    }
    return 0;
}

void bucket_remove_files(struct store *s, struct bucket *b)
{
    static const char *const suffixes[] = {"meta", "bucket", "sum", "journal"};
    for (size_t i = 0; i < MCFS_ARRAY_SIZE(suffixes); i++) {
        char path[PATH_MAX];
        bucket_path(s, b->id, suffixes[i], path, sizeof(path));
        if (unlink(path) && errno != ENOENT)
            mcfs_warning("%s: %s", path, strerror(errno));
    }
    b->removed = true;
    MCFS_LOCK_SCOPE(&s->lock);
    s->names_dirty = true;
}

void set_aside(struct store *s, const char *name, const char *why)
{
    char from[PATH_MAX], to[PATH_MAX];
    if (s->config.read_only)
        return;
    snprintf(to, sizeof(to), "%s/lost+found", s->dir);
    if (mkdir(to, 0755) && errno != EEXIST)
        mcfs_warning("%s: %s", to, strerror(errno));
    snprintf(from, sizeof(from), "%s/%s", s->dir, name);
    for (int i = 0; i < 1000; i++) {
        if (i == 0)
            snprintf(to, sizeof(to), "%s/lost+found/%s", s->dir, name);
        else
            snprintf(to, sizeof(to), "%s/lost+found/%s.%d", s->dir, name, i);
        if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0) {
            mcfs_warning("%s: %s; it is set aside in lost+found", from, why);
            return;
        }
        if (errno != EEXIST)
            break;
    }
    mcfs_warning("%s: %s; it cannot be set aside: %s", from, why, strerror(errno));
}
