/* SPDX-License-Identifier: Apache-2.0 */
#include "common/clock.h"
#include "master/admin_http.h"

#include <inttypes.h>

static void put(struct mcfs_buf *b, const char *name, const char *type, const char *help,
                double value)
{
    mcfs_buf_printf(b, "# HELP mooncakefs_%s %s\n# TYPE mooncakefs_%s %s\nmooncakefs_%s %.17g\n",
                    name, help, name, type, name, value);
}

struct tiers {
    uint64_t capacity_bytes, used_bytes;
    uint32_t connected, known;
};

static struct tiers sum_nodes(struct master *m)
{
    struct tiers t = {0};
    struct node_info node;
    for (uint32_t i = 1; i <= nodes_max(m->nodes); i++) {
        if (!nodes_get(m->nodes, i, &node))
            continue;
        t.known++;
        if (!node.connected)
            continue;
        t.connected++;
        t.capacity_bytes += node.capacity_bytes;
        t.used_bytes += node.used_bytes;
    }
    return t;
}

static void put_checkpoints(struct master *m, struct mcfs_buf *b)
{
    struct checkpoint_state c;
    if (!restoring_is_over(m->restoring) || !m->checkpointer)
        return;
    checkpointer_state(m->checkpointer, &c);
    put(b, "snapshots_taken_total", "counter", "Snapshots published.", (double)c.taken);
    put(b, "snapshots_failed_total", "counter", "Snapshots that failed.", (double)c.failed);
    put(b, "snapshot_running", "gauge", "1 while a snapshot is being written.", c.running);
    put(b, "snapshot_last_timestamp_seconds", "gauge", "When the last snapshot was taken.",
        (double)c.last_created_ms / 1e3);
    put(b, "snapshot_last_duration_seconds", "gauge", "How long the last snapshot took.",
        (double)c.last_duration_ms / 1e3);
    put(b, "snapshot_last_copied_bytes", "gauge",
        "Bytes of the directory copied on write during the last snapshot.",
        (double)c.last_copied_bytes);
    put(b, "snapshot_last_pause_seconds", "gauge",
        "How long requests stood still for the last snapshot.", (double)c.last_pause_us / 1e6);
}

void admin_metrics(struct master *m, struct mcfs_buf *b)
{
    struct directory_stats s;
    uint64_t connections, requests;
    struct tiers t = sum_nodes(m);
    struct segments_sum memory;
    unsigned slot = directory_enter(m->directory);
    directory_stats(m->directory, &s);
    segments_sum(directory_segments(m->directory), &memory);
    directory_leave(m->directory, slot);
    mcfs_rpc_server_counts(m->server, &connections, &requests);
    uint64_t restore_done, restore_all;
    restoring_figures(m->restoring, &restore_done, &restore_all);
    put(b, "restoring", "gauge", "1 while a snapshot is being restored.",
        !restoring_is_over(m->restoring));
    put(b, "restore_shards_done", "gauge", "Shards of it that are restored.", (double)restore_done);
    put(b, "restore_shards", "gauge", "Shards that it has.", (double)restore_all);
    put(b, "objects", "gauge", "Visible objects.", (double)s.objects);
    put(b, "object_bytes", "gauge", "Sum of their sizes.", (double)s.object_bytes);
    put(b, "directories", "gauge", "Directories that keys imply.", (double)s.directories);
    put(b, "pending_puts", "gauge", "Puts that have begun and not ended.", (double)s.pending_puts);
    put(b, "directory_memory_bytes", "gauge", "Memory of records, keys and tables.",
        (double)s.memory_bytes);
    put(b, "directory_memory_limit_bytes", "gauge", "Where puts are refused; 0: no limit.",
        (double)m->flags.memory_limit);
    put(b, "memory_per_key_bytes", "gauge", "Memory of the directory by its objects.",
        s.objects ? (double)s.memory_bytes / (double)s.objects : 0);
    put(b, "lookups_total", "counter", "Look-ups of single keys.", (double)s.lookups);
    put(b, "puts_total", "counter", "Puts made visible.", (double)s.puts);
    put(b, "removes_total", "counter", "Objects removed.", (double)s.removes);
    put(b, "evicted_replicas_total", "counter", "Replicas that nodes have evicted.",
        (double)s.evicted_replicas);
    put(b, "evicted_bytes_total", "counter", "Bytes of those.", (double)s.evicted_bytes);
    put(b, "leases_granted_total", "counter", "Read leases granted or extended.",
        (double)s.leases_granted);
    put(b, "lease_recalls_total", "counter", "Recalls of leases.", (double)s.recalls);
    put(b, "rpc_connections", "gauge", "Open RPC connections.", (double)connections);
    put(b, "rpc_requests_total", "counter", "RPC requests answered.", (double)requests);
    put(b, "nodes", "gauge", "Nodes known.", t.known);
    put(b, "nodes_connected", "gauge", "Nodes that answer.", t.connected);
    mcfs_buf_printf(b,
                    "# HELP mooncakefs_tier_capacity_bytes Capacity of the connected nodes' tier.\n"
                    "# TYPE mooncakefs_tier_capacity_bytes gauge\n"
                    "mooncakefs_tier_capacity_bytes{tier=\"local_disk\"} %" PRIu64
                    "\n"
                    "mooncakefs_tier_capacity_bytes{tier=\"memory\"} %" PRIu64
                    "\n"
                    "# HELP mooncakefs_tier_used_bytes Bytes used of it.\n"
                    "# TYPE mooncakefs_tier_used_bytes gauge\n"
                    "mooncakefs_tier_used_bytes{tier=\"local_disk\"} %" PRIu64
                    "\n"
                    "mooncakefs_tier_used_bytes{tier=\"memory\"} %" PRIu64 "\n",
                    t.capacity_bytes, memory.capacity, t.used_bytes, memory.used);
    admin_memory_metrics(m, b);
    service_metrics(b);
    put(b, "restored_objects", "gauge", "Objects kept from the snapshot at start.",
        (double)m->restored_objects);
    put(b, "restore_dropped_objects", "gauge", "Objects of that snapshot that were not kept.",
        (double)m->restore_dropped_objects);
    put(b, "start_timestamp_seconds", "gauge", "When this master started.",
        (double)m->started_wall_ms / 1e3);
    put_checkpoints(m, b);
}

void admin_metrics_summary(struct master *m, struct mcfs_buf *b)
{
    struct directory_stats s;
    struct tiers t = sum_nodes(m);
    unsigned slot = directory_enter(m->directory);
    directory_stats(m->directory, &s);
    directory_leave(m->directory, slot);
    mcfs_buf_printf(b,
                    "Keys: %" PRIu64 " (%" PRIu64 " bytes) | Nodes: %u of %u | Local disk: %" PRIu64
                    " / %" PRIu64 " bytes | Puts: %" PRIu64 " | Look-ups: %" PRIu64
                    " | Removes: %" PRIu64 "\n",
                    s.objects, s.object_bytes, t.connected, t.known, t.used_bytes, t.capacity_bytes,
                    s.puts, s.lookups, s.removes);
}
