/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_MASTER_MASTER_H
#define MCFS_MASTER_MASTER_H

/* The parts of a running master, put together in main.c and served by service*.c. */

#include "common/rpc/rpc.h"
#include "master/checkpoint.h"
#include "master/directory.h"
#include "master/flags.h"
#include "master/nodes.h"
#include "master/restoring.h"

#include <stdatomic.h>

struct admin_http;
struct evictor;
struct quotas;
struct waiting_puts;

struct master {
    struct master_flags flags;
    struct directory *directory;
    struct nodes *nodes;
    struct restoring *restoring;
    struct checkpointer *checkpointer; /* NULL: no snapshot store; not to be asked before the
                                          restore is over */
    struct evictor *evictor;           /* of memory replicas; NULL before the restore is over */
    struct waiting_puts *waiting;      /* for room in memory */
    struct quotas *quotas;             /* NULL: none */
    struct mcfs_rpc_keys *keys;        /* NULL: TCP callers are not asked for one */
    struct mcfs_rpc_server *server;
    struct admin_http *admin; /* NULL: metrics_port is 0 */
    uint32_t
        epoch; /* of this process, so that sessions of an earlier one are not taken for its own */
    int64_t started_wall_ms;
    uint64_t restored_objects, restore_dropped_objects;
};

/* The RPC handler (arg: struct master) and its connection callback. */
int service_handle(void *arg, struct mcfs_rpc_request *request, struct mcfs_error *err);
/* Figures of the methods in Prometheus' text format; any thread. */
void service_metrics(struct mcfs_buf *out);
void service_disconnected(void *arg, struct mcfs_rpc_conn *conn);

/* Implementations of the methods of one kind; each returns 0 or -1 with err. */
typedef int (*method_fn)(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err);

int method_register(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err);
int method_inventory_items(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err);
int method_inventory_end(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err);
int method_ping(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err);
int method_recall_done(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err);
int method_discarded(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err);
int method_nodes(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err);

int method_get_replica_list(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err);
int method_batch_get_replica_list(struct master *m, struct mcfs_rpc_request *r,
                                  struct mcfs_error *err);
int method_exist_key(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err);
int method_batch_exist_key(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err);
int method_lookup(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err);
int method_list(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err);
int method_list_names(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err);
int method_lookup_ahead(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err);
int method_put_start(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err);
int method_put_end(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err);
int method_exchange(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err);
int method_put_revoke(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err);
int method_remove(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err);
int method_set_attr(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err);
int method_set_pin(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err);

int method_get_replica_list_by_regex(struct master *m, struct mcfs_rpc_request *r,
                                     struct mcfs_error *err);
int method_batch_remove(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err);
int method_batch_evict_disk_replica(struct master *m, struct mcfs_rpc_request *r,
                                    struct mcfs_error *err);
int method_remove_by_regex(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err);
int method_remove_all(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err);
int method_set_soft_pin(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err);

int method_mount_segment(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err);
int method_unmount_segment(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err);
int method_graceful_unmount_segment(struct master *m, struct mcfs_rpc_request *r,
                                    struct mcfs_error *err);
int method_get_all_segments(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err);
int method_query_segment(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err);

int method_tenants(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err);
int method_status(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err);
int method_snapshot_create(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err);
int method_snapshot_state(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err);
int method_snapshot_list(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err);
int method_snapshot_files(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err);
int method_snapshot_read(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err);
int method_snapshot_prune(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err);

/* A node's number from a session, or 0 for session 0; -1 (CLIENT_NOT_FOUND) for one this master
 * does not know. */
int session_node(struct master *m, uint64_t session, uint32_t *node, struct mcfs_error *err);

/* [mode, uid, gid, mtime_ns] without an array around it. */
void put_attr(struct mcfs_buf *b, const struct mcfs_attr *attr);
bool read_attr(struct mp_reader *p, struct mcfs_attr *attr);

/* An object as the method table describes it. */
void put_object(struct master *m, struct mcfs_buf *b, const struct object_view *v);

/* Appends the answer of Lookup without the array around it: object or nil, mtime or nil.  *view
 * gets the object, with version 0 when there is none. */
int put_lookup(struct master *m, struct mcfs_buf *b, struct mcfs_slice tenant,
               struct mcfs_slice path, uint32_t node, struct object_view *view,
               struct mcfs_error *err);

/* "params are not ..." */
int bad_params(struct mcfs_rpc_request *r, struct mcfs_error *err);

#endif
