/* SPDX-License-Identifier: Apache-2.0 */
/* mooncakefs-master: the directory of a cluster. */
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/file.h"
#include "common/log.h"
#include "master/admin_http.h"
#include "master/evict.h"
#include "master/master.h"
#include "master/quota.h"
#include "master/service_segment.h"
#include "master/waiting.h"

#include <inttypes.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <systemd/sd-daemon.h>

#define HOUSEKEEPING_MS 1000

static void on_recall(void *arg, uint32_t node, struct mcfs_slice tenant, struct mcfs_slice key,
                      uint64_t version)
{
    struct master *m = arg;
    _cleanup_buf_ struct mcfs_buf params = MCFS_BUF_INIT;
    mp_put_array(&params, 3);
    mp_put_str(&params, tenant);
    mp_put_str(&params, key);
    mp_put_uint(&params, version);
    nodes_notify(m->nodes, node, "Recall", &params);
}

static void on_discard(void *arg, uint32_t node, struct mcfs_slice tenant, struct mcfs_slice key,
                       uint64_t version)
{
    struct master *m = arg;
    nodes_discard(m->nodes, node, tenant, key, version);
}

static bool is_connected(void *arg, uint32_t node)
{
    return nodes_connected(((struct master *)arg)->nodes, node);
}

static bool may_hold_lease(void *arg, uint32_t node)
{
    struct master *m = arg;
    return nodes_heard_within(m->nodes, node, (int64_t)m->flags.default_kv_lease_ttl_ms);
}

static bool leases_known(void *arg)
{
    return nodes_all_back(((struct master *)arg)->nodes);
}

static struct mcfs_slice endpoint_of(void *arg, uint32_t node)
{
    /* For the checkpoint's child, one thread of which asks at a time per encoder. */
    static _Thread_local struct node_info info;
    if (!nodes_get(((struct master *)arg)->nodes, node, &info))
        return mcfs_slice("", 0);
    return mcfs_slice_str(info.endpoint);
}

static uint32_t list_nodes(void *arg, struct snap_node *out, uint32_t max)
{
    struct master *m = arg;
    uint32_t n = 0;
    for (uint32_t i = 1; i <= nodes_max(m->nodes) && n < max; i++) {
        struct node_info info;
        if (!nodes_get(m->nodes, i, &info))
            continue;
        out[n++] = (struct snap_node){.id = info.id,
                                      .name = mcfs_slice_str(strdup(info.name)),
                                      .endpoint = mcfs_slice_str(strdup(info.endpoint)),
                                      .capacity_bytes = info.capacity_bytes};
    }
    return n; /* the child that asked ends soon, and with it the copies */
}

static void in_child(void *arg)
{
    struct master *m = arg;
    mcfs_rpc_server_forget_in_child(m->server);
    admin_http_forget_in_child(m->admin);
}

static int quota_of(void *arg, struct mcfs_slice tenant, uint64_t *bytes, struct mcfs_error *err)
{
    return quotas_limit(((struct master *)arg)->quotas, tenant, bytes, err);
}

static int make_directory(struct master *m, struct mcfs_error *err)
{
    struct directory_config config = {
        .lease_ms = (uint32_t)m->flags.default_kv_lease_ttl_ms,
        .soft_pin_ms = (uint32_t)m->flags.default_kv_soft_pin_ttl_ms,
        .put_release_ms = (uint32_t)m->flags.put_start_release_timeout_ms,
        .put_discard_ms = (uint32_t)m->flags.put_start_discard_timeout_ms,
        .memory_limit_bytes = m->flags.memory_limit,
        .recall = on_recall,
        .discard = on_discard,
        .connected = is_connected,
        .endpoint = endpoint_of,
        .may_hold_lease = may_hold_lease,
        .leases_known = leases_known,
        .quota = m->flags.enable_multi_tenants ? quota_of : NULL,
        .arg = m};
    if (m->flags.enable_multi_tenants &&
        !(m->quotas = quotas_load(m->flags.tenant_quota_connector_uri, err)))
        return -1;
    if (m->flags.state_dir && mcfs_make_dirs(m->flags.state_dir, 0755, err))
        return -1;
    m->restoring = restoring_new(err);
    if (!m->restoring)
        return -1;
    m->nodes = nodes_new(m->flags.state_dir, (uint32_t)m->flags.client_ttl_ms, err);
    if (!m->nodes)
        return -1;
    m->directory = directory_new(&config, err);
    return m->directory ? 0 : -1;
}

/* Restores, and starts to take snapshots. */
static int start_snapshots(struct master *m, struct mcfs_object_store *store,
                           struct restore_result *restored, struct mcfs_error *err)
{
    *restored = (struct restore_result){0};
    if (m->flags.enable_snapshot_restore &&
        restore_newest(m->directory, store, m->flags.cluster_id, restoring_watch(m->restoring),
                       restored, err))
        return -1;
    m->restored_objects = restored->kept;
    m->restore_dropped_objects = restored->incomplete + restored->twice + restored->lost_memory;
    segments_await_all(directory_segments(m->directory), m->flags.client_ttl_ms);
    struct checkpoint_config config = {
        .directory = m->directory,
        .store = store,
        .cluster = m->flags.cluster_id,
        .retention = m->flags.snapshot_retention_count,
        .backup_dir = m->flags.snapshot_backup_dir,
        .interval_ms = m->flags.enable_snapshot ? (int64_t)m->flags.snapshot_interval_ms : 0,
        .child_timeout_ms = (int64_t)m->flags.snapshot_child_timeout_ms,
        .segments = mcfs_slice(restored->segments.data, restored->segments.len),
        .tasks = mcfs_slice(restored->tasks.data, restored->tasks.len),
        .discarded = mcfs_slice(restored->discarded.data, restored->discarded.len),
        .nodes = list_nodes,
        .in_child = in_child,
        .arg = m};
    m->checkpointer = checkpointer_start(&config, err);
    return m->checkpointer ? 0 : -1;
}

static int start_evictor(struct master *m, struct mcfs_error *err)
{
    struct evict_config config = {.directory = m->directory,
                                  .ratio = m->flags.eviction_ratio,
                                  .high_watermark = m->flags.eviction_high_watermark_ratio,
                                  .soft_pinned = m->flags.allow_evict_soft_pinned_objects,
                                  .waiters = waiting_puts_waiters(m->waiting)};
    m->evictor = evictor_start(&config, err);
    return m->evictor ? 0 : -1;
}

static int load_keys(struct master *m, struct mcfs_error *err)
{
    if (!m->flags.auth_key_file)
        return 0;
    m->keys = mcfs_rpc_keys_load(m->flags.auth_key_file, err);
    if (!m->keys)
        return -1;
    if (mcfs_rpc_keys_any_bound(m->keys) && !m->flags.state_dir)
        return mcfs_fail(err, MCFS_INVALID_PARAMS,
                         "%s binds keys to tenants, which needs --state_dir: there the master "
                         "remembers which key a node came with",
                         m->flags.auth_key_file);
    return 0;
}

static int listen_all(struct master *m, struct mcfs_error *err)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    struct mcfs_rpc_server_config config = {.handler = service_handle,
                                            .disconnected = service_disconnected,
                                            .arg = m,
                                            .threads = m->flags.rpc_thread_num
                                                           ? m->flags.rpc_thread_num
                                                           : (uint32_t)(cores > 0 ? cores : 1)};
    char address[512];
    if (load_keys(m, err))
        return -1;
    config.keys = m->keys;
    m->server = mcfs_rpc_server_new(&config, err);
    if (!m->server)
        return -1;
    if (m->flags.rpc_socket) {
        snprintf(address, sizeof(address), "unix:%s", m->flags.rpc_socket);
        if (mcfs_rpc_server_listen(m->server, address, NULL, err))
            return -1;
    }
    if (m->flags.rpc_port) {
        const char *host = m->flags.rpc_address;
        snprintf(address, sizeof(address), strchr(host, ':') ? "[%s]:%u" : "%s:%u", host,
                 m->flags.rpc_port);
        if (!m->keys && !mcfs_rpc_address_is_local(address))
            return mcfs_fail(err, MCFS_INVALID_PARAMS,
                             "%s: listening beyond loopback needs authentication (--auth_key_file)",
                             address);
        if (mcfs_rpc_server_listen(m->server, address, NULL, err))
            return -1;
    }
    return 0;
}

/* Waits for signals; SIGUSR1 takes a snapshot, SIGTERM and SIGINT end. */
static void serve(struct master *m, const sigset_t *signals)
{
    struct timespec tick = mcfs_timespec(HOUSEKEEPING_MS * 1000000ll);
    for (;;) {
        int sig = sigtimedwait(signals, NULL, &tick);
        if (sig == SIGTERM || sig == SIGINT)
            return;
        if (sig == SIGUSR1) {
            char id[SNAP_ID_SIZE];
            struct mcfs_error err = MCFS_ERROR_INIT;
            if (!m->checkpointer)
                mcfs_warning("SIGUSR1: this master has no snapshot store");
            else if (m->flags.snapshot_read_only)
                mcfs_warning("SIGUSR1: these snapshots are only shown");
            else if (checkpointer_request(m->checkpointer, id, &err))
                mcfs_error("%s", err.msg);
            else
                mcfs_info("SIGUSR1: snapshot %s begins", id);
        }
        nodes_expire(m->nodes);
        unsigned slot = directory_enter(m->directory);
        directory_discard_puts(m->directory);
        segments_tick(m);
        directory_leave(m->directory, slot);
    }
}

static int run(struct master *m, struct mcfs_error *err)
{
    struct mcfs_object_store *store = NULL;
    struct restore_result restored = {0};
    sigset_t signals;
    /* Blocked before any thread is made, so that only sigtimedwait takes them. */
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);

    int rc = make_directory(m, err);
    if (rc == 0)
        rc = (m->waiting = waiting_puts_new(m, err)) ? 0 : -1;
    /* Listening before the restore tells a second master on the same address at once. */
    if (rc == 0)
        rc = listen_all(m, err);
    if (rc == 0 && m->flags.metrics_port)
        rc = (m->admin = admin_http_new(m, err)) ? 0 : -1;
    const char *where = strcmp(m->flags.snapshot_object_store_type, "s3") == 0
                            ? "s3://" /* the bucket that the environment names */
                            : m->flags.snapshot_local_path;
    /* Both answer while the restore goes on, if only with how far it is; whoever is answered over
     * RPC finds the admin HTTP there as well. */
    if (rc == 0 && m->admin)
        rc = admin_http_start(m->admin, err);
    if (rc == 0)
        rc = mcfs_rpc_server_start(m->server, err);
    if (rc == 0 && where) {
        store = snap_store_open(where, err);
        rc = store ? start_snapshots(m, store, &restored, err) : -1;
    }
    if (rc == 0)
        rc = start_evictor(m, err);
    if (rc == 0) {
        restoring_end(m->restoring);
        mcfs_info("serving");
        sd_notify(0, "READY=1");
        serve(m, &signals);
        mcfs_info("stopping");
    }
    if (rc && m->restoring && restoring_was_stopped(m->restoring)) {
        mcfs_info("stopping: the restore is given up");
        rc = 0;
    }
    /* Its child lets go of the server's sockets, and requests ask for its state. */
    checkpointer_stop(m->checkpointer);
    admin_http_free(m->admin);
    mcfs_rpc_server_stop(m->server);
    evictor_stop(m->evictor); /* no request wakes it any more */
    waiting_puts_free(m->waiting);
    mcfs_rpc_keys_free(m->keys);
    quotas_free(m->quotas);
    checkpointer_free(m->checkpointer);
    directory_free(m->directory);
    nodes_free(m->nodes);
    restoring_free(m->restoring);
    mcfs_buf_free(&restored.segments);
    mcfs_buf_free(&restored.tasks);
    mcfs_buf_free(&restored.discarded);
    if (store)
        store->ops->close(store);
    return rc;
}

static void raise_descriptors(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

int main(int argc, char **argv)
{
    static struct master m;
    struct mcfs_error err = MCFS_ERROR_INIT;
    mcfs_log_init("mooncakefs-master", MCFS_LOG_INFO);
    signal(SIGPIPE, SIG_IGN);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "-h") == 0 || strcmp(argv[i], "--help") == 0) {
            printf("usage: mooncakefs-master [--FLAG=VALUE ...]\n\nflags, and their defaults:\n");
            mcfs_flags_help(master_flag_table, stdout);
            return 0;
        }
        if (strcmp(argv[i], "-V") == 0 || strcmp(argv[i], "--version") == 0) {
            printf("mooncakefs-master %s\n", MCFS_VERSION);
            return 0;
        }
    }
    if (master_flags_parse(&m.flags, &argc, argv, &err)) {
        fprintf(stderr, "mooncakefs-master: %s\n", err.msg);
        mcfs_flags_free(master_flag_table, &m.flags);
        return 1;
    }
    if (m.flags.die_with_parent) {
        pid_t parent = getppid();
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        if (getppid() != parent || parent == 1)
            return 1;
    }
    if (m.flags.verbose)
        mcfs_log_init("mooncakefs-master", MCFS_LOG_DEBUG);
    if (m.flags.log_file && mcfs_log_to_file(m.flags.log_file)) {
        fprintf(stderr, "mooncakefs-master: %s: %s\n", m.flags.log_file, strerror(errno));
        return 1;
    }
    raise_descriptors();
    m.started_wall_ms = mcfs_wall_ms();
    if (getrandom(&m.epoch, sizeof(m.epoch), 0) != sizeof(m.epoch))
        abort();
    m.epoch |= 1; /* never 0, so that no session is */
    int rc = run(&m, &err);
    if (rc) {
        mcfs_error("%s", err.msg);
        if (m.flags.log_file)
            fprintf(stderr, "mooncakefs-master: %s\n", err.msg);
    }
    mcfs_flags_free(master_flag_table, &m.flags);
    return rc ? 1 : 0;
}
