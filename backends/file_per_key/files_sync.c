/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Durability.  A sync makes the files that were put since the last one durable, then their names,
 * says so in their logs with a SYNC record, and makes the logs durable.  Callers that come while
 * one is under way share the next: it covers whatever was done before it began.
 *
 * A flush also removes the files of removed objects, which their logs do not name any more for
 * good, and shortens logs that have grown long.
 *
 * Costs: one fdatasync per new file, two fsyncs per changed shard; when much has changed, two
 * syncfs for all of it.
 */
#include "backends/file_per_key/files.h"

#include "backends/room.h"
#include "common/cleanup.h"
#include "common/log.h"

#include <fcntl.h>
#include <inttypes.h>

#define SYNCFS_FROM 32 /* new files */

/* One shard on its way through a sync. */
struct work {
    struct file_ids unsynced, dead;
    uint64_t log_before; /* puts recorded below are covered when the files are flushed */
    uint32_t names;
    bool all, log, failed;
};

struct sync {
    struct files *s;
    struct work work[FILES_SHARDS];
    bool everything; /* by syncfs */
    int rc;
    struct mcfs_error *err; /* of the first failure */
};

static void fail(struct sync *y, unsigned shard, int errnum, const char *what)
{
    if (y->rc == 0)
        mcfs_fail_errno(y->err, errnum, "%s/" FILES_DIR "/%x: %s", y->s->dir, shard, what);
    y->rc = -1;
    y->work[shard].failed = true;
}

/* ---- what is to be done ---- */

static void take_work(struct sync *y, bool full)
{
    size_t files = 0;
    for (unsigned i = 0; i < FILES_SHARDS; i++) {
        struct file_shard *h = &y->s->shards[i];
        struct work *w = &y->work[i];
        MCFS_LOCK_SCOPE(&h->lock);
        w->unsynced = h->unsynced;
        w->log_before = h->log_end;
        w->names = h->names_dirty;
        w->all = h->sync_all;
        w->log = h->log_dirty;
        h->unsynced = (struct file_ids){NULL, 0, 0};
        h->names_dirty = 0;
        h->sync_all = h->log_dirty = false;
        if (full) {
            w->dead = h->dead;
            h->dead = (struct file_ids){NULL, 0, 0};
        }
        files += w->unsynced.count;
        y->everything |= w->all;
    }
    y->everything |= files >= SYNCFS_FROM || atomic_exchange(&y->s->mooncake_dirty, false);
}

/* Whatever was taken is to be done again. */
static void give_back(struct sync *y, unsigned shard)
{
    struct work *w = &y->work[shard];
    struct file_shard *h = &y->s->shards[shard];
    MCFS_LOCK_SCOPE(&h->lock);
    h->sync_all = h->log_dirty = true;
    for (size_t i = 0; i < w->dead.count; i++)
        if (file_ids_add(&h->dead, w->dead.v[i].id, w->dead.v[i].size))
            mcfs_warning("%s: out of memory; the next start removes files", y->s->dir);
    w->dead.count = 0;
}

/* ---- files, logs, names ---- */

static void sync_values(struct sync *y)
{
    struct files *s = y->s;
    int all_failed = y->everything && syncfs(s->own_fd) ? errno : 0;
    for (unsigned i = 0; i < FILES_SHARDS; i++) {
        struct work *w = &y->work[i];
        int errnum = w->unsynced.count || w->all ? all_failed : 0;
        for (size_t k = 0; !y->everything && k < w->unsynced.count && !errnum; k++) {
            char path[FILES_NAME];
            file_path(i, w->unsynced.v[k].id, path);
            _cleanup_fd_ int fd = openat(s->own_fd, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
            if (fd < 0 ? errno != ENOENT : fdatasync(fd) != 0)
                errnum = errno;
        }
        if (!errnum)
            continue;
        fail(y, i, errnum, "values");
        MCFS_LOCK_SCOPE(&s->shards[i].lock);
        /* The kernel may have dropped what it could not write, and does not say so twice. */
        s->shards[i].never_sure = true;
    }
}

/* Says in the logs what of the files is durable now. */
static void mark_logs(struct sync *y)
{
    struct files *s = y->s;
    for (unsigned i = 0; i < FILES_SHARDS; i++) {
        struct work *w = &y->work[i];
        struct file_shard *h = &s->shards[i];
        struct mcfs_error err = MCFS_ERROR_INIT;
        MCFS_LOCK_SCOPE(&h->lock);
        if (!(w->log || w->all || w->unsynced.count) || w->failed || h->never_sure)
            continue;
        w->log = true;
        struct log_record r = {.type = LOG_SYNC, .synced_to = w->log_before};
        if (file_log(s, i, &r, &err))
            fail(y, i, err.errnum, "log");
        else
            h->log_dirty = h->log_end > w->log_before + LOG_SYNC_SIZE;
    }
}

static void sync_logs(struct sync *y)
{
    struct files *s = y->s;
    int all_failed = y->everything && syncfs(s->own_fd) ? errno : 0;
    for (unsigned i = 0; i < FILES_SHARDS; i++) {
        struct work *w = &y->work[i];
        if (!w->log)
            continue;
        errno = all_failed;
        if (y->everything ? all_failed : fdatasync(s->shards[i].log_fd))
            fail(y, i, errno, "log");
    }
}

static int sync_dir(struct files *s, const char *path)
{
    _cleanup_fd_ int fd = openat(s->own_fd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return fd < 0 ? -1 : fsync(fd);
}

static int sync_folder(struct files *s, unsigned shard, unsigned folder)
{
    char path[FILES_NAME];
    snprintf(path, sizeof(path), "values/%x%x", shard, folder);
    return sync_dir(s, path);
}

static void sync_names(struct sync *y)
{
    if (atomic_exchange(&y->s->folders_made, false) && !y->everything && sync_dir(y->s, "values")) {
        int errnum = errno;
        for (unsigned i = 0; i < FILES_SHARDS; i++)
            fail(y, i, errnum, "names");
        atomic_store(&y->s->folders_made, true);
    }
    for (unsigned i = 0; i < FILES_SHARDS && !y->everything; i++) {
        uint32_t failed = 0;
        for (unsigned folder = 0; folder < FILES_FOLDERS; folder++)
            if (y->work[i].names >> folder & 1 && sync_folder(y->s, i, folder)) {
                fail(y, i, errno, "names");
                failed |= 1u << folder;
            }
        MCFS_LOCK_SCOPE(&y->s->shards[i].lock);
        y->s->shards[i].names_dirty |= failed;
    }
}

/* ---- after that, nobody waits ---- */

static void remove_dead(struct sync *y, unsigned shard)
{
    struct files *s = y->s;
    struct work *w = &y->work[shard];
    uint32_t names = 0;
    for (size_t i = 0; i < w->dead.count; i++) {
        char path[FILES_NAME];
        file_path(shard, w->dead.v[i].id, path);
        if (unlinkat(s->own_fd, path, 0) && errno != ENOENT)
            mcfs_warning("%s/" FILES_DIR "/%s: %s", s->dir, path, strerror(errno));
        atomic_fetch_sub(&s->used_bytes, w->dead.v[i].size);
        names |= 1u << (w->dead.v[i].id & 15);
    }
    MCFS_LOCK_SCOPE(&s->shards[shard].lock);
    s->shards[shard].names_dirty |= names;
}

/* A log that is renewed forgets whose files are gone: they have to be gone for good. */
static void shorten(struct sync *y, unsigned shard)
{
    struct files *s = y->s;
    struct file_shard *h = &s->shards[shard];
    struct mcfs_error err = MCFS_ERROR_INIT;
    MCFS_LOCK_SCOPE(&h->lock);
    if (!file_log_is_long(h) || h->dead.count)
        return;
    for (unsigned folder = 0; folder < FILES_FOLDERS; folder++)
        if (h->names_dirty >> folder & 1 && sync_folder(s, shard, folder)) {
            fail(y, shard, errno, "names");
            return;
        }
    if (file_log_renew(s, shard, true, &err))
        fail(y, shard, err.errnum, "log");
}

/* The sync lock is held. */
static int sync_all(struct files *s, bool full, struct mcfs_error *err)
{
    struct sync y = {.s = s, .err = err};
    take_work(&y, full);
    sync_values(&y);
    sync_names(&y); /* before a log says that the files are there for good */
    mark_logs(&y);
    sync_logs(&y);
    for (unsigned i = 0; i < FILES_SHARDS; i++) {
        if (y.work[i].failed) {
            give_back(&y, i);
        } else if (full) {
            remove_dead(&y, i);
            shorten(&y, i);
        }
        free(y.work[i].unsynced.v);
        free(y.work[i].dead.v);
    }
    atomic_fetch_add(&s->syncs, 1);
    return y.rc;
}

int files_sync(struct mcfs_backend *base, struct mcfs_error *err)
{
    struct files *s = (struct files *)base;
    if (s->config.read_only)
        return 0;
    uint64_t mine = atomic_fetch_add(&s->sync_asked, 1) + 1;
    MCFS_LOCK_SCOPE(&s->sync_lock);
    if (s->sync_done >= mine)
        return 0;
    uint64_t covers = atomic_load(&s->sync_asked);
    if (sync_all(s, false, err))
        return -1;
    s->sync_done = covers;
    return 0;
}

int files_flush(void *arg, struct mcfs_error *err)
{
    struct files *s = arg;
    MCFS_LOCK_SCOPE(&s->sync_lock);
    uint64_t covers = atomic_load(&s->sync_asked);
    if (sync_all(s, true, err))
        return -1;
    s->sync_done = covers;
    return 0;
}

bool files_has_work(void *arg)
{
    struct files *s = arg;
    if (atomic_load(&s->mooncake_dirty))
        return true;
    for (unsigned i = 0; i < FILES_SHARDS; i++) {
        struct file_shard *h = &s->shards[i];
        MCFS_LOCK_SCOPE(&h->lock);
        if (h->unsynced.count || h->dead.count || h->sync_all || h->log_dirty || h->names_dirty)
            return true;
    }
    return false;
}

/* ---- room ---- */

int files_claim(struct files *s, uint64_t bytes, struct mcfs_error *err)
{
    struct room r = {.dir = s->dir,
                     .dir_fd = s->dir_fd,
                     .capacity_bytes = s->config.capacity_bytes,
                     .used = &s->used_bytes,
                     .needed = atomic_load(&s->object_bytes),
                     .flush = files_flush,
                     .store = s};
    return room_claim(&r, bytes, err);
}
