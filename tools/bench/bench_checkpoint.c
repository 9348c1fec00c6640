/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/bench/bench_checkpoint.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "master/client/client.h"
#include "tools/bench/bench_process.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>

#define SAMPLE_MS 20
#define START_MS 600000

static void read_objects(struct mcfs_slice name, const struct mcfs_slice *text, int64_t number,
                         void *arg)
{
    if (!text && mcfs_slice_eq(name, MCFS_SLICE_LITERAL("objects")))
        *(uint64_t *)arg = (uint64_t)number;
}

/* Takes one, and looks at the child while it lives. */
static int take(struct mcfs_master *m, pid_t pid, struct bench_checkpoint *out,
                struct mcfs_error *err)
{
    char last[32], failure[256];
    bool running = true;
    int64_t began = mcfs_mono_ns();
    out->master_kib = bench_memory(pid) / 1024;
    if (mcfs_master_snapshot_create(m, out->id, err))
        return -1;
    while (running) {
        out->private_kib = MCFS_MAX(out->private_kib, bench_children_private(pid) / 1024);
        poll(NULL, 0, SAMPLE_MS);
        if (mcfs_master_snapshot_state(m, &running, last, failure, err))
            return -1;
    }
    out->checkpoint_s = (double)(mcfs_mono_ns() - began) / 1e9;
    return strcmp(last, out->id) == 0
               ? 0
               : mcfs_fail(err, MCFS_INTERNAL_ERROR, "checkpoint %s: %s", out->id, failure);
}

static int measure(const char *address, pid_t pid, uint64_t keys, struct bench_checkpoint *out,
                   struct mcfs_error *err)
{
    struct mcfs_master_config config = {.address = address, .timeout_ms = START_MS};
    uint64_t objects = 0;
    int64_t began = mcfs_mono_ns();
    struct mcfs_master *m = mcfs_master_open(&config, err);
    int rc = m ? mcfs_master_status(m, read_objects, &objects, err) : -1;
    out->restart_s = (double)(mcfs_mono_ns() - began) / 1e9;
    if (rc == 0 && objects != keys)
        rc = mcfs_fail(err, MCFS_INTERNAL_ERROR, "the master restored %llu objects",
                       (unsigned long long)objects);
    if (rc == 0)
        rc = take(m, pid, out, err);
    mcfs_master_close(m);
    return rc;
}

int bench_checkpoint(const char *dir, const char *cluster, uint64_t keys,
                     struct bench_checkpoint *out, struct mcfs_error *err)
{
    _cleanup_free_ char *program = bench_program("mooncakefs-master", "master");
    char port[32], path[4096], id[300], address[64];
    uint16_t number = bench_free_port();
    *out = (struct bench_checkpoint){0};
    snprintf(port, sizeof(port), "--rpc_port=%u", number);
    snprintf(address, sizeof(address), "127.0.0.1:%u", number);
    snprintf(path, sizeof(path), "--snapshot_local_path=%s", dir);
    snprintf(id, sizeof(id), "--cluster_id=%s", cluster);
    const char *argv[] = {program,
                          port,
                          path,
                          id,
                          "--metrics_port=0",
                          "--enable_snapshot",
                          "--enable_snapshot_restore",
                          "--snapshot_interval_seconds=86400",
                          "--snapshot_child_timeout_seconds=3600",
                          "--snapshot_retention_count=1000000",
                          NULL};
    pid_t pid = program ? bench_start(argv, "/dev/null", err) : -1;
    if (pid < 0)
        return -1;
    int rc = measure(address, pid, keys, out, err);
    bench_stop(pid);
    return rc;
}
