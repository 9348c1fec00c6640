/* SPDX-License-Identifier: Apache-2.0 */
#include "master/client/restore_check.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "master/checkpoint.h"

static int try_one(struct directory *d, struct mcfs_object_store *store, const char *cluster,
                   const char *id, const struct mcfs_restore_check_watch *watch,
                   struct mcfs_restore_check *out, struct mcfs_error *err)
{
    struct restore_result r = {0};
    struct restore_watch w = {.progress = watch->progress, .arg = watch->arg};
    int64_t began = mcfs_mono_ns();
    int rc = restore_one(d, store, cluster, id, watch->progress ? &w : NULL, &r, err);
    if (rc == 0) {
        struct directory_stats stats;
        directory_stats(d, &stats);
        memcpy(out->id, r.id, SNAP_ID_SIZE);
        out->seconds = (double)(mcfs_mono_ns() - began) / 1e9;
        out->kept = r.kept;
        out->replicas = r.replicas;
        out->incomplete = r.incomplete;
        out->twice = r.twice;
        out->lost_memory = r.lost_memory;
        out->memory_bytes = stats.memory_bytes;
    }
    mcfs_buf_free(&r.segments);
    mcfs_buf_free(&r.tasks);
    mcfs_buf_free(&r.discarded);
    return rc;
}

static int try_all(struct directory *d, struct mcfs_object_store *store, const char *cluster,
                   const struct mcfs_restore_check_watch *watch, struct mcfs_restore_check *out,
                   struct mcfs_error *err)
{
    char(*ids)[SNAP_ID_SIZE];
    size_t count;
    if (snap_repo_candidates(store, cluster, &ids, &count, err))
        return -1;
    for (size_t i = 0; i < count && !out->id[0]; i++) {
        struct mcfs_error bad = MCFS_ERROR_INIT;
        if (try_one(d, store, cluster, ids[i], watch, out, &bad) == 0)
            break;
        out->failed_candidates++;
        if (watch->failed)
            watch->failed(ids[i], bad.msg, watch->arg);
    }
    free(ids);
    return 0;
}

int mcfs_restore_check(struct mcfs_object_store *store, const char *cluster, const char *id,
                       const struct mcfs_restore_check_watch *watch, struct mcfs_restore_check *out,
                       struct mcfs_error *err)
{
    struct directory_config config = directory_alone(NULL);
    *out = (struct mcfs_restore_check){0};
    struct directory *d = directory_new(&config, err);
    if (!d)
        return -1;
    int rc = *id ? try_one(d, store, cluster, id, watch, out, err)
                 : try_all(d, store, cluster, watch, out, err);
    directory_free(d);
    return rc;
}
