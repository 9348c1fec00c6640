/* SPDX-License-Identifier: Apache-2.0 */
#include "common/clock.h"
#include "common/hash.h"
#include "common/table.h"
#include "master/access.h"
#include "master/latency.h"
#include <mooncakefs/rpc_methods.h>

#include <pthread.h>

struct method {
    const char *name, *params;
    method_fn fn;
};

#define REGISTER method_register
#define INVENTORY_ITEMS method_inventory_items
#define INVENTORY_END method_inventory_end
#define PING method_ping
#define RECALL_DONE method_recall_done
#define DISCARDED method_discarded
#define GET_REPLICA_LIST method_get_replica_list
#define BATCH_GET_REPLICA_LIST method_batch_get_replica_list
#define EXIST_KEY method_exist_key
#define BATCH_EXIST_KEY method_batch_exist_key
#define LOOKUP method_lookup
#define LIST method_list
#define LIST_NAMES method_list_names
#define LOOKUP_AHEAD method_lookup_ahead
#define PUT_START method_put_start
#define PUT_END method_put_end
#define PUT_REVOKE method_put_revoke
#define EXCHANGE method_exchange
#define REMOVE method_remove
#define SET_ATTR method_set_attr
#define SET_PIN method_set_pin
#define GET_REPLICA_LIST_BY_REGEX method_get_replica_list_by_regex
#define BATCH_REMOVE method_batch_remove
#define BATCH_EVICT_DISK_REPLICA method_batch_evict_disk_replica
#define REMOVE_BY_REGEX method_remove_by_regex
#define REMOVE_ALL method_remove_all
#define SET_SOFT_PIN method_set_soft_pin
#define MOUNT_SEGMENT method_mount_segment
#define UNMOUNT_SEGMENT method_unmount_segment
#define GRACEFUL_UNMOUNT_SEGMENT method_graceful_unmount_segment
#define GET_ALL_SEGMENTS method_get_all_segments
#define QUERY_SEGMENT method_query_segment
#define TENANTS method_tenants
#define NODES method_nodes
#define STATUS method_status
#define SNAPSHOT_CREATE method_snapshot_create
#define SNAPSHOT_STATE method_snapshot_state
#define SNAPSHOT_LIST method_snapshot_list
#define SNAPSHOT_FILES method_snapshot_files
#define SNAPSHOT_READ method_snapshot_read
#define SNAPSHOT_PRUNE method_snapshot_prune

static const struct method methods[] = {
#define X(id, name, params, result, help) {name, params, id},
    MCFS_MASTER_METHODS(X)
#undef X
};

#define METHOD_COUNT (sizeof(methods) / sizeof(methods[0]))
_Static_assert(METHOD_COUNT <= LATENCY_METHODS_MAX, "each method has its histogram");

static uint64_t method_hash(const void *e)
{
    const char *name = ((const struct method *)e)->name;
    return mcfs_hash(name, strlen(name));
}

static bool method_eq(const void *e, const void *key)
{
    return mcfs_slice_eq(mcfs_slice_str(((const struct method *)e)->name),
                         *(const struct mcfs_slice *)key);
}

static struct mcfs_table by_name = MCFS_TABLE_INIT(method_hash);
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void index_methods(void)
{
    for (size_t i = 0; i < METHOD_COUNT; i++)
        if (mcfs_table_add(&by_name, (void *)(uintptr_t)&methods[i]))
            abort();
}

static const struct method *find_method(struct mcfs_slice name)
{
    pthread_once(&once, index_methods);
    return mcfs_table_find(&by_name, mcfs_hash(name.data, name.len), method_eq, &name);
}

int bad_params(struct mcfs_rpc_request *r, struct mcfs_error *err)
{
    const struct method *method = find_method(r->method);
    return mcfs_fail(err, MCFS_INVALID_PARAMS, "%.*s: params must be %s",
                     (int)(r->method.len < 64 ? r->method.len : 64), r->method.data,
                     method ? method->params : "an array");
}

int session_node(struct master *m, uint64_t session, uint32_t *node, struct mcfs_error *err)
{
    *node = (uint32_t)(session & 0xffff);
    if (session == 0)
        return 0;
    if (session >> 16 != m->epoch || !nodes_registered(m->nodes, *node))
        return mcfs_fail(err, MCFS_CLIENT_NOT_FOUND, "this master does not know the session");
    return 0;
}

static int call(struct master *m, const struct method *method, struct mcfs_rpc_request *request,
                struct mcfs_error *err)
{
    /* These wait for a store, which may be far away, and touch no object: a checkpoint's fork must
     * not wait for them. */
    if (strncmp(method->name, "Snapshot", 8) == 0)
        return method->fn(m, request, err);
    unsigned slot = directory_enter(m->directory);
    int rc = method->fn(m, request, err);
    directory_leave(m->directory, slot);
    return rc;
}

int service_handle(void *arg, struct mcfs_rpc_request *request, struct mcfs_error *err)
{
    struct master *m = arg;
    const struct method *method = find_method(request->method);
    if (!method)
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "no method '%.*s'",
                         (int)(request->method.len < 64 ? request->method.len : 64),
                         request->method.data);
    if (access_check(m, method->name, method->params, request, err) ||
        restoring_wait(m->restoring, err))
        return -1;
    int64_t began = mcfs_mono_ns();
    int rc = call(m, method, request, err);
    latency_note((unsigned)(method - methods), mcfs_mono_ns() - began);
    return rc;
}

static const char *name_of(unsigned method)
{
    return methods[method].name;
}

void service_metrics(struct mcfs_buf *out)
{
    latency_metrics(name_of, METHOD_COUNT, out);
}

void service_disconnected(void *arg, struct mcfs_rpc_conn *conn)
{
    struct master *m = arg;
    if (mcfs_rpc_conn_tag(conn))
        nodes_disconnected(m->nodes, conn);
}
