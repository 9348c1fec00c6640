/* SPDX-License-Identifier: Apache-2.0 */
/* Restoring: the newest snapshot that can be read whole, its shards decoded side by side. */
#include "master/checkpoint.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/log.h"
#include "master/segments_image.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#define THREADS_MAX 8

struct restore {
    struct directory *directory;
    struct snap_reader *reader;
    atomic_uint next;
    _Atomic uint64_t outcomes[RESTORE_OUTCOMES]; /* by what directory_restore says */
    _Atomic uint64_t shards;
    const struct restore_watch *watch;
    atomic_bool failed;
    pthread_mutex_t lock; /* guards err */
    struct mcfs_error err;
};

static int restore_object(const struct snap_object *o, void *arg, struct mcfs_error *err)
{
    struct restore *r = arg;
    int rc = directory_restore(r->directory, o, err);
    if (rc < 0)
        return -1;
    atomic_fetch_add_explicit(&r->outcomes[rc], 1, memory_order_relaxed);
    return 0;
}

static void *restore_main(void *arg)
{
    struct restore *r = arg;
    for (;;) {
        uint32_t place = atomic_fetch_add(&r->next, 1);
        struct mcfs_error err = MCFS_ERROR_INIT;
        if (place >= snap_reader_shards(r->reader) || atomic_load(&r->failed))
            return NULL;
        if (r->watch && r->watch->stop && r->watch->stop(r->watch->arg)) {
            MCFS_LOCK_SCOPE(&r->lock);
            if (!atomic_exchange(&r->failed, true))
                mcfs_fail_errno(&r->err, EINTR, "restore");
            return NULL;
        }
        if (snap_reader_shard(r->reader, place, restore_object, r, &err)) {
            MCFS_LOCK_SCOPE(&r->lock);
            if (!atomic_exchange(&r->failed, true))
                r->err = err;
        }
        uint64_t done = atomic_fetch_add(&r->shards, 1) + 1;
        if (r->watch) {
            MCFS_LOCK_SCOPE(&r->lock);
            r->watch->progress(done, snap_reader_shards(r->reader), r->watch->arg);
        }
    }
}

static int restore_shards(struct restore *r, struct mcfs_error *err)
{
    pthread_t threads[THREADS_MAX];
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    unsigned started = 0, want = (unsigned)MCFS_MIN(MCFS_MAX(cores, 1), THREADS_MAX);
    while (started + 1 < want && pthread_create(&threads[started], NULL, restore_main, r) == 0)
        started++;
    restore_main(r);
    while (started > 0)
        pthread_join(threads[--started], NULL);
    if (!atomic_load(&r->failed))
        return 0;
    *err = r->err;
    return -1;
}

int restore_one(struct directory *d, struct mcfs_object_store *store, const char *cluster,
                const char *id, const struct restore_watch *watch, struct restore_result *out,
                struct mcfs_error *err)
{
    struct restore r = {.directory = d, .watch = watch};
    /* Every shard is checked when it is read; what is read twice takes twice as long. */
    r.reader = snap_reader_open_lazily(store, cluster, id, err);
    if (!r.reader)
        return -1;
    pthread_mutex_init(&r.lock, NULL);
    mcfs_buf_reset(&out->segments);
    mcfs_buf_reset(&out->tasks);
    mcfs_buf_reset(&out->discarded);
    int rc = snap_reader_segments(r.reader, &out->segments, err);
    if (rc == 0)
        rc = directory_restore_segments(d, mcfs_slice(out->segments.data, out->segments.len), err);
    if (rc == 0)
        rc = restore_shards(&r, err);
    if (rc == 0)
        rc = directory_restore_held(d, snap_reader_discarded(r.reader), err);
    if (rc == 0)
        rc = snap_reader_tasks(r.reader, &out->tasks, err);
    if (rc == 0) {
        struct mcfs_slice discarded = snap_reader_discarded(r.reader);
        mcfs_buf_append(&out->discarded, discarded.data, discarded.len);
        directory_raise_next_id(d, snap_reader_info(r.reader)->replica_next_id);
        memcpy(out->id, id, SNAP_ID_SIZE);
        out->kept = atomic_load(&r.outcomes[RESTORE_KEPT]);
        out->incomplete = atomic_load(&r.outcomes[RESTORE_INCOMPLETE]);
        out->twice = atomic_load(&r.outcomes[RESTORE_TWICE]);
        out->lost_memory = atomic_load(&r.outcomes[RESTORE_LOST_MEMORY]);
        struct directory_stats stats;
        directory_stats(d, &stats);
        out->replicas = stats.restored_replicas;
    } else {
        directory_clear(d); /* never a half state */
    }
    snap_reader_close(r.reader);
    pthread_mutex_destroy(&r.lock);
    return rc;
}

static void warn_of_memory(struct directory *d, const struct restore_result *out)
{
    struct directory_stats s;
    const char *id = out->id;
    directory_stats(d, &s);
    if (out->lost_memory)
        mcfs_warning("snapshot %s: %" PRIu64
                     " objects more are dropped, whose memory replicas "
                     "could not be kept",
                     id, out->lost_memory);
    if (s.restore_lost_segments)
        mcfs_warning("snapshot %s: %" PRIu64 " memory replicas lie in segments that it has not", id,
                     s.restore_lost_segments);
    if (s.restore_lost_ranges)
        mcfs_warning("snapshot %s: %" PRIu64
                     " memory replicas have no range of their own in their "
                     "segments",
                     id, s.restore_lost_ranges);
}

int restore_newest(struct directory *d, struct mcfs_object_store *store, const char *cluster,
                   const struct restore_watch *watch, struct restore_result *out,
                   struct mcfs_error *err)
{
    char(*ids)[SNAP_ID_SIZE];
    size_t count;
    *out = (struct restore_result){0};
    if (snap_repo_candidates(store, cluster, &ids, &count, err))
        return -1;
    int64_t began = mcfs_mono_ms();
    for (size_t i = 0; i < count; i++) {
        struct mcfs_error bad = MCFS_ERROR_INIT;
        if (watch && watch->candidate)
            watch->candidate(ids[i], watch->arg);
        if (restore_one(d, store, cluster, ids[i], watch, out, &bad)) {
            if (bad.errnum == EINTR) {
                free(ids);
                if (err)
                    *err = bad;
                return -1;
            }
            mcfs_error("snapshot %s cannot be restored: %s", ids[i], bad.msg);
            out->failed_candidates++;
            continue;
        }
        mcfs_info("snapshot %s restored in %" PRId64 " ms: %" PRIu64 " objects kept, %" PRIu64
                  " dropped (%" PRIu64 " without a complete replica, %" PRIu64 " there already)",
                  out->id, mcfs_mono_ms() - began, out->kept, out->incomplete + out->twice,
                  out->incomplete, out->twice);
        warn_of_memory(d, out);
        if (out->twice)
            mcfs_warning("snapshot %s: %" PRIu64 " objects are in it twice", out->id, out->twice);
        if (out->incomplete > out->kept)
            mcfs_warning("snapshot %s: most objects had no complete replica", out->id);
        break;
    }
    if (!out->id[0] && count)
        mcfs_error("none of %zu snapshots can be restored: the directory starts empty", count);
    free(ids);
    return 0;
}
