/* SPDX-License-Identifier: Apache-2.0 */
/* RPC methods that show and steer the master: tenants, status, snapshots. */
#include "common/cleanup.h"
#include "common/clock.h"
#include "master/evict.h"
#include "master/master.h"
#include "master/waiting.h"

#include <unistd.h>

#define READ_MAX (8u << 20)
#define PRUNE_AGE_MAX_MS (10ull * 365 * 86400 * 1000)

struct tenants {
    struct master *m;
    struct mcfs_buf *to;
    const struct mcfs_rpc_key *key; /* only its tenants are shown */
    uint32_t count;
};

static void put_tenant(struct mcfs_slice tenant, void *arg)
{
    struct tenants *t = arg;
    uint64_t objects, bytes;
    if (!mcfs_rpc_key_allows(t->key, tenant))
        return;
    directory_tenant_stats(t->m->directory, tenant, &objects, &bytes);
    mp_put_array(t->to, 3);
    mp_put_str(t->to, tenant);
    mp_put_uint(t->to, objects);
    mp_put_uint(t->to, bytes);
    t->count++;
}

int method_tenants(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err)
{
    struct tenants t = {m, r->result, mcfs_rpc_conn_key(r->conn), 0};
    (void)err;
    size_t at = mp_begin_array(r->result);
    directory_tenants(m->directory, put_tenant, &t);
    mp_end_array(r->result, at, t.count);
    return 0;
}

int method_status(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err)
{
    struct directory_stats s;
    struct checkpoint_state c = {0};
    uint64_t connections, requests;
    (void)err;
    directory_stats(m->directory, &s);
    if (m->checkpointer)
        checkpointer_state(m->checkpointer, &c);
    mcfs_rpc_server_counts(m->server, &connections, &requests);
    struct segments_sum memory;
    struct evict_counts evicted;
    segments_sum(directory_segments(m->directory), &memory);
    evictor_counts(m->evictor, &evicted);
    const struct {
        const char *name;
        int64_t value;
    } figures[] = {
        {"pid", getpid()},
        {"uptime_ms", mcfs_wall_ms() - m->started_wall_ms},
        {"objects", (int64_t)s.objects},
        {"object_bytes", (int64_t)s.object_bytes},
        {"directories", (int64_t)s.directories},
        {"pending_puts", (int64_t)s.pending_puts},
        {"discarded_puts", (int64_t)s.discarded_puts},
        {"directory_memory_bytes", (int64_t)s.memory_bytes},
        {"leases_granted", (int64_t)s.leases_granted},
        {"recalls", (int64_t)s.recalls},
        {"lookups", (int64_t)s.lookups},
        {"puts", (int64_t)s.puts},
        {"removes", (int64_t)s.removes},
        {"evicted_replicas", (int64_t)s.evicted_replicas},
        {"evicted_bytes", (int64_t)s.evicted_bytes},
        {"nodes_connected", nodes_count_connected(m->nodes)},
        {"memory_segments", memory.count},
        {"memory_capacity_bytes", (int64_t)memory.capacity},
        {"memory_used_bytes", (int64_t)memory.used},
        {"memory_held_bytes", (int64_t)memory.held_bytes},
        {"allocation_failures", (int64_t)memory.failures},
        {"waiting_puts", waiting_puts_count(m->waiting)},
        {"memory_evicted_objects", (int64_t)evicted.objects},
        {"memory_evicted_bytes", (int64_t)evicted.bytes},
        {"rpc_connections", (int64_t)connections},
        {"rpc_requests", (int64_t)requests},
        {"restored_objects", (int64_t)m->restored_objects},
        {"restore_dropped_objects", (int64_t)m->restore_dropped_objects},
        {"snapshots_taken", (int64_t)c.taken},
        {"snapshots_failed", (int64_t)c.failed},
        {"snapshot_created_ms", c.last_created_ms},
        {"snapshot_duration_ms", c.last_duration_ms},
        {"snapshot_pause_us", c.last_pause_us},
        {"snapshot_copied_bytes", (int64_t)c.last_copied_bytes},
        {"snapshot_interval_ms",
         m->flags.enable_snapshot ? (int64_t)m->flags.snapshot_interval_ms : 0},
    };
    const struct {
        const char *name, *value;
    } texts[] = {{"role", "leader"},
                 {"version", MCFS_VERSION},
                 {"cluster_id", m->flags.cluster_id},
                 {"snapshot_id", c.last_id},
                 {"snapshot_error", c.last_error}};
    mp_put_map(r->result, MCFS_ARRAY_SIZE(figures) + MCFS_ARRAY_SIZE(texts));
    for (size_t i = 0; i < MCFS_ARRAY_SIZE(texts); i++) {
        mp_put_cstr(r->result, texts[i].name);
        mp_put_cstr(r->result, texts[i].value);
    }
    for (size_t i = 0; i < MCFS_ARRAY_SIZE(figures); i++) {
        mp_put_cstr(r->result, figures[i].name);
        mp_put_int(r->result, figures[i].value);
    }
    return 0;
}

static int need_store(struct master *m, struct mcfs_error *err)
{
    if (m->checkpointer)
        return 0;
    return mcfs_fail(err, MCFS_UNAVAILABLE_IN_CURRENT_MODE,
                     "this master has no snapshot store (--enable_snapshot)");
}

static int need_writable_store(struct master *m, struct mcfs_error *err)
{
    if (need_store(m, err))
        return -1;
    return m->flags.snapshot_read_only
               ? mcfs_fail_errno(err, EROFS,
                                 "these snapshots are only shown (--snapshot_read_only)")
               : 0;
}

int method_snapshot_create(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err)
{
    char id[SNAP_ID_SIZE];
    if (need_writable_store(m, err) || checkpointer_request(m->checkpointer, id, err))
        return -1;
    mp_put_array(r->result, 1);
    mp_put_cstr(r->result, id);
    return 0;
}

int method_snapshot_state(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err)
{
    struct checkpoint_state c;
    if (need_store(m, err))
        return -1;
    checkpointer_state(m->checkpointer, &c);
    mp_put_array(r->result, 3);
    mp_put_bool(r->result, c.running);
    mp_put_cstr(r->result, c.last_id);
    mp_put_cstr(r->result, c.last_error);
    return 0;
}

int method_snapshot_list(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err)
{
    struct snap_entry *list;
    size_t count;
    if (!m->checkpointer) {
        mp_put_array(r->result, 0);
        return 0;
    }
    if (snap_repo_list(checkpointer_store(m->checkpointer), m->flags.cluster_id, &list, &count,
                       err))
        return -1;
    mp_put_array(r->result, (uint32_t)count);
    for (size_t i = 0; i < count; i++) {
        mp_put_array(r->result, 3);
        mp_put_cstr(r->result, list[i].id);
        mp_put_int(r->result, list[i].info.created_ms);
        mp_put_uint(r->result, list[i].bytes);
    }
    free(list);
    return 0;
}

/* An id and a file's name from outside: nothing that could lead elsewhere. */
static int read_id(struct mcfs_rpc_request *r, char id[SNAP_ID_SIZE], struct mcfs_error *err)
{
    struct mcfs_slice text;
    if (!mp_read_raw(&r->params, &text))
        return bad_params(r, err);
    snprintf(id, SNAP_ID_SIZE, "%.*s", MCFS_SLICE_ARG(text));
    if (text.len != SNAP_ID_SIZE - 1 || !snap_id_is_valid(id))
        return mcfs_fail(err, MCFS_FILE_NOT_FOUND, "no such snapshot");
    return 0;
}

struct files {
    struct mcfs_buf *to;
    uint32_t count;
};

static bool put_file(const struct mcfs_object_info *info, void *arg)
{
    struct files *f = arg;
    mp_put_array(f->to, 3);
    mp_put_cstr(f->to, strrchr(info->name, '/') + 1);
    mp_put_uint(f->to, info->size);
    mp_put_int(f->to, info->mtime_ns);
    f->count++;
    return true;
}

int method_snapshot_files(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err)
{
    char id[SNAP_ID_SIZE];
    if (read_id(r, id, err) || need_store(m, err))
        return -1;
    struct files f = {r->result, 0};
    size_t at = mp_begin_array(r->result);
    if (snap_repo_files(checkpointer_store(m->checkpointer), m->flags.cluster_id, id, put_file, &f,
                        err))
        return -1;
    mp_end_array(r->result, at, f.count);
    return 0;
}

int method_snapshot_prune(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err)
{
    uint32_t keep, snapshots = 0, files = 0;
    uint64_t min_age_ms;
    if (need_writable_store(m, err))
        return -1;
    if (!mp_read_u32_max(&r->params, UINT32_MAX, &keep) || !mp_read_uint(&r->params, &min_age_ms) ||
        min_age_ms > PRUNE_AGE_MAX_MS)
        return bad_params(r, err);
    if (snap_repo_prune(checkpointer_store(m->checkpointer), m->flags.cluster_id, keep,
                        (int64_t)min_age_ms, &snapshots, &files, err))
        return -1;
    mp_put_array(r->result, 2);
    mp_put_uint(r->result, snapshots);
    mp_put_uint(r->result, files);
    return 0;
}

int method_snapshot_read(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err)
{
    char id[SNAP_ID_SIZE], name[64];
    struct mcfs_slice file;
    uint64_t off, len;
    if (read_id(r, id, err) || need_store(m, err))
        return -1;
    if (!mp_read_raw(&r->params, &file) || !mp_read_uint(&r->params, &off) ||
        !mp_read_uint(&r->params, &len) || len > READ_MAX || off >> 62)
        return bad_params(r, err);
    if (file.len >= sizeof(name) || memchr(file.data, '/', file.len) ||
        (file.len && file.data[0] == '.'))
        return mcfs_fail(err, MCFS_FILE_NOT_FOUND, "no such file in a snapshot");
    snprintf(name, sizeof(name), "%.*s", MCFS_SLICE_ARG(file));
    _cleanup_free_ char *buf = malloc(len ? len : 1);
    if (!buf)
        return mcfs_fail_errno(err, ENOMEM, "snapshot");
    ssize_t n = snap_repo_read(checkpointer_store(m->checkpointer), m->flags.cluster_id, id, name,
                               off, buf, len, err);
    if (n < 0)
        return -1;
    mp_put_bin(r->result, buf, (size_t)n);
    return 0;
}
