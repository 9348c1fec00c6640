/* SPDX-License-Identifier: Apache-2.0 */
/* bench-snapshot [KEYS [PLACE]]: two snapshots of so many keys are written, verified, compared and
 * restored, in a directory or s3://BUCKET/PREFIX.  Each step runs in a process of its own, whose
 * memory is measured, and what was written is deleted.  In a directory, a master then restores the
 * second and takes a checkpoint. */
#include "common/cleanup.h"
#include "common/clock.h"
#include "master/client/restore_check.h"
#include "snapshot/snapshot.h"
#include "tools/bench/bench_checkpoint.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define CLUSTER "bench"

struct bench {
    const char *place;
    uint64_t keys;
    char a[SNAP_ID_SIZE], b[SNAP_ID_SIZE];
};

static int write_shard(struct snap_writer *w, struct snap_encoder *e, uint32_t shard,
                       const struct bench *bench, bool changed, struct mcfs_error *err)
{
    uint64_t count = bench->keys / MCFS_SHARD_COUNT + (shard < bench->keys % MCFS_SHARD_COUNT);
    struct mcfs_slice metadata, extra;
    struct snap_replica replica = {.status = MCFS_REPLICA_COMPLETE,
                                   .type = MCFS_REPLICA_LOCAL_DISK,
                                   .client = {1, 2},
                                   .endpoint = MCFS_SLICE_LITERAL("127.0.0.1:1"),
                                   .size = 4 << 20};
    snap_encode_begin(e);
    for (uint64_t i = 0; i < count; i++) {
        char key[128];
        int n = snprintf(key, sizeof(key),
                         "meta-llama_Llama-3.1-8B@tp_rank:0@%04x%016" PRIx64 "%048d", shard, i, 0);
        replica.id = i * MCFS_SHARD_COUNT + shard + 1 + (changed && i % 100 == 0);
        struct snap_object o = {.tenant = MCFS_SLICE_LITERAL(MCFS_DEFAULT_TENANT),
                                .key = mcfs_slice(key, (size_t)n),
                                .put_start_ms = 1750000000000,
                                .size = 4 << 20,
                                .has_extra = true,
                                .version = replica.id,
                                .attr = {0644, 0, 0, 1},
                                .replica_count = 1,
                                .replicas = &replica};
        if (snap_encode_object(e, &o, err))
            return -1;
    }
    return snap_encode_end(e, &metadata, &extra, err) ||
                   snap_writer_shard(w, shard, metadata, extra, err)
               ? -1
               : 0;
}

static int write_one(const struct bench *b, struct mcfs_object_store *store, const char *id,
                     bool changed, struct mcfs_error *err)
{
    struct snap_writer_config config = {
        .store = store,
        .cluster = CLUSTER,
        .id = id,
        .shard_count = (uint32_t)MCFS_MIN(b->keys, (uint64_t)MCFS_SHARD_COUNT),
        .info = {.created_ms = mcfs_wall_ms(), .replica_next_id = b->keys + 2}};
    struct snap_encoder *e = snap_encoder_new();
    struct snap_writer *w = e ? snap_writer_begin(&config, err) : NULL;
    int rc = w ? 0 : -1;
    for (uint32_t i = 0; rc == 0 && i < config.shard_count; i++)
        rc = write_shard(w, e, i, b, changed, err);
    if (rc == 0)
        rc = snap_writer_commit(w, err);
    else if (w)
        snap_writer_abort(w);
    snap_encoder_free(e);
    return rc;
}

/* ---- steps ---- */

static int step_write(const struct bench *b, struct mcfs_object_store *store,
                      struct mcfs_error *err)
{
    return write_one(b, store, b->a, false, err);
}

static int step_write_again(const struct bench *b, struct mcfs_object_store *store,
                            struct mcfs_error *err)
{
    return write_one(b, store, b->b, true, err);
}

static int step_verify(const struct bench *b, struct mcfs_object_store *store,
                       struct mcfs_error *err)
{
    uint64_t objects = 0;
    struct snap_reader *r = snap_reader_open_lazily(store, CLUSTER, b->a, err);
    int rc = r ? snap_reader_verify(r, &objects, err) : -1;
    snap_reader_close(r);
    return rc == 0 && objects != b->keys ? mcfs_fail(err, MCFS_INTERNAL_ERROR, "keys are missing")
                                         : rc;
}

static int nothing(const struct snap_difference *d, void *arg, struct mcfs_error *err)
{
    (void)d, (void)arg, (void)err;
    return 0;
}

static int step_diff(const struct bench *b, struct mcfs_object_store *store, struct mcfs_error *err)
{
    struct snap_diff_counts n;
    struct snap_reader *x = snap_reader_open_lazily(store, CLUSTER, b->a, err);
    struct snap_reader *y = x ? snap_reader_open_lazily(store, CLUSTER, b->b, err) : NULL;
    int rc = y ? snap_diff(x, y, nothing, NULL, NULL, &n, err) : -1;
    snap_reader_close(x);
    snap_reader_close(y);
    return rc == 0 && (n.changed == 0 || n.changed + n.same != b->keys)
               ? mcfs_fail(err, MCFS_INTERNAL_ERROR, "not what was changed")
               : rc;
}

static int step_restore(const struct bench *b, struct mcfs_object_store *store,
                        struct mcfs_error *err)
{
    struct mcfs_restore_check_watch watch = {0};
    struct mcfs_restore_check r;
    int rc = mcfs_restore_check(store, CLUSTER, b->b, &watch, &r, err);
    return rc == 0 && r.kept != b->keys ? mcfs_fail(err, MCFS_INTERNAL_ERROR, "keys are missing")
                                        : rc;
}

static const struct step {
    const char *name;
    int (*fn)(const struct bench *b, struct mcfs_object_store *store, struct mcfs_error *err);
} steps[] = {{"write", step_write},
             {"write_again", step_write_again},
             {"verify", step_verify},
             {"diff", step_diff},
             {"restore", step_restore}};

static int child(const struct bench *b, const struct step *s)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct mcfs_object_store *store = snap_store_open(b->place, &err);
    int rc = store ? s->fn(b, store, &err) : -1;
    if (rc)
        fprintf(stderr, "bench-snapshot: %s: %s\n", s->name, err.msg);
    return rc ? 1 : 0;
}

/* The checkpoint of a master of so many keys; what it took goes with the rest. */
static int checkpoint(const struct bench *b, char *json, size_t cap)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct bench_checkpoint c;
    int rc = bench_checkpoint(b->place, CLUSTER, b->keys, &c, &err);
    struct mcfs_object_store *store = snap_store_open(b->place, NULL);
    if (store && c.id[0])
        snap_repo_delete(store, CLUSTER, c.id, NULL);
    if (store)
        store->ops->close(store);
    if (rc) {
        fprintf(stderr, "bench-snapshot: checkpoint: %s\n", err.msg);
        return -1;
    }
    printf("%-12s %6.2f s, and a master of %" PRIu64 " MiB answers\n", "restart", c.restart_s,
           c.master_kib >> 10);
    printf("%-12s %6.2f s, %" PRIu64 " MiB beside what it shares with the master\n", "checkpoint",
           c.checkpoint_s, c.private_kib >> 10);
    snprintf(json, cap,
             ", \"restart_s\": %.3f, \"checkpoint_s\": %.3f, \"master_kib\": %" PRIu64
             ", \"checkpoint_private_kib\": %" PRIu64,
             c.restart_s, c.checkpoint_s, c.master_kib, c.private_kib);
    return 0;
}

int main(int argc, char **argv)
{
    struct bench b = {.keys = argc > 1 ? strtoull(argv[1], NULL, 10) : 1000000,
                      .place = argc > 2 ? argv[2] : "/var/tmp/mcfs-bench-snapshots",
                      .a = "20260101_000000_000",
                      .b = "20260101_000000_001"};
    struct mcfs_error err = MCFS_ERROR_INIT;
    int failed = 0;
    if (argc > 3 || (argc > 1 && (argv[1][0] == '-' || b.keys == 0))) {
        fprintf(stderr, "usage: bench-snapshot [KEYS [DIR or s3://BUCKET/PREFIX]]\n");
        return 2;
    }
    char json[1024];
    int n = snprintf(json, sizeof(json), "{\"keys\": %" PRIu64, b.keys);
    for (size_t i = 0; i < MCFS_ARRAY_SIZE(steps) && !failed; i++) {
        struct rusage usage;
        int status = 1;
        int64_t began = mcfs_mono_ns();
        pid_t pid = fork();
        if (pid == 0)
            _exit(child(&b, &steps[i]));
        failed = pid < 0 || wait4(pid, &status, 0, &usage) != pid || status != 0;
        double seconds = (double)(mcfs_mono_ns() - began) / 1e9;
        printf("%-12s %6.2f s, %ld MiB\n", steps[i].name, seconds,
               failed ? 0 : usage.ru_maxrss >> 10);
        fflush(stdout);
        n += snprintf(json + n, sizeof(json) - (size_t)n,
                      ", \"%s_s\": %.3f, \"%s_max_rss_kib\": %ld", steps[i].name, seconds,
                      steps[i].name, failed ? 0 : usage.ru_maxrss);
    }
    if (!failed && strncmp(b.place, "s3://", 5) != 0) /* a master's S3 has no prefix */
        failed = checkpoint(&b, json + n, sizeof(json) - (size_t)n) != 0;
    struct mcfs_object_store *store = snap_store_open(b.place, &err);
    if (store) {
        snap_repo_delete(store, CLUSTER, b.a, NULL);
        snap_repo_delete(store, CLUSTER, b.b, NULL);
        store->ops->close(store);
    }
    if (!failed)
        printf("%s}\n", json);
    return failed;
}
