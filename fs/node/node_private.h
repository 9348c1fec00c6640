/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_FS_NODE_PRIVATE_H
#define MCFS_FS_NODE_PRIVATE_H

#include "fs/node/node.h"
#include "fs/node/supervisor.h"

#include <pthread.h>
#include <stdatomic.h>

#define COMMIT_LOCKS 256
#define PEERS_MAX 1024

struct peer {
    char *endpoint;
    struct mcfs_rpc_client *client;
    struct mcfs_rpc_client *quick; /* for who must not wait long */
};

struct node {
    struct node_config config;
    const struct mcfs_backend_ops *ops;
    struct mcfs_backend *store;
    char *store_dir;
    struct supervisor *supervisor; /* NULL: the master is somebody else's */
    const char *master_address;
    struct mcfs_master *master;
    struct mcfs_rpc_keys *keys; /* NULL: none */
    struct mcfs_rpc_server *server;
    char *endpoint; /* of the data server */
    struct data_server *data;
    pthread_mutex_t commit_locks[COMMIT_LOCKS]; /* by key: one commit at a time */
    pthread_mutex_t exchange_lock;              /* one exchange at a time; before commit_locks */
    pthread_mutex_t peers_lock;                 /* guards peers */
    struct peer peers[PEERS_MAX];
    unsigned peer_count;
    struct verifier *verifier;
    struct known *known;
    struct holds *holds;     /* of what is open here and stored by peers */
    struct held_set *held;   /* for peers */
    struct streams *streams; /* from peers */
    struct evictor *evictor; /* NULL: the store is somebody else's */
    _Atomic uint64_t remote_reads, remote_bytes, local_reads;
};

/* The data server's RPC handler; arg is the node. */
int data_server_handle(void *arg, struct mcfs_rpc_request *request, struct mcfs_error *err);
struct data_server *data_server_new(struct node *n);
void data_server_free(struct data_server *d);

/* peers.c: the connections to a peer; quick: with a timeout of 2 s at most. */
struct mcfs_rpc_client *node_peer_client(struct node *n, const char *endpoint, bool quick,
                                         struct mcfs_error *err);
void node_peers_free(struct node *n);

/* replica_reader.c: whether a replica can be read from another node. */
bool node_replica_is_remote(struct node *n, const struct mcfs_master_replica *r);
/* Whether memory segments have the object and no node's store does. */
bool node_is_in_memory_alone(const struct mcfs_master_object *o);

/* Nothing to do for a wait that is watched. */
static inline void may_wait(const struct node *n, const struct mcfs_cancel *cancel)
{
    if (n->config.may_wait && !(cancel && cancel->watch))
        n->config.may_wait();
}

/* Takes a version out of the store. */
void node_drop(struct node *n, struct mcfs_slice tenant, struct mcfs_slice key, uint64_t version);

/* ---- commit.c, for exchange.c ---- */

/* Locks two keys against other commits. */
void node_lock_keys(struct node *n, struct mcfs_slice a, struct mcfs_slice b);
void node_unlock_keys(struct node *n, struct mcfs_slice a, struct mcfs_slice b);

/* Locks a key against other commits if that needs no waiting, noting it in locked; a lock that
 * stands there already is held.  Returns whether it is locked now. */
bool node_try_lock_key(struct node *n, struct mcfs_slice key, bool locked[COMMIT_LOCKS]);
void node_unlock_locked(struct node *n, const bool locked[COMMIT_LOCKS]);

/* Waits a moment before a leased object is asked for again; false when it is time to give up (err
 * says why the last try failed, or EINTR).  *pause_ms begins as LEASE_POLL_FIRST_MS. */
#define LEASE_POLL_FIRST_MS 1
bool node_wait_for_lease(struct node *n, int64_t began_ms, int64_t *pause_ms,
                         const struct mcfs_cancel *cancel, struct mcfs_error *err);

/* Puts a copy of an object that other nodes store under a key of its own or another.  The caller
 * has locked the key. */
int node_copy_here(struct node *n, struct mcfs_slice tenant, struct mcfs_slice from,
                   const struct mcfs_master_object *object, struct mcfs_slice to, bool no_replace,
                   struct node_put_result *out, const struct mcfs_cancel *cancel,
                   struct mcfs_error *err);

/* exchange.c: finishes the exchange that the last process on this state directory was in the middle
 * of.  Before the store's inventory is told to anybody. */
int node_finish_exchange(struct node *n, struct mcfs_error *err);

/* lookup.c: what is known of a key is so no more, or may not be. */
void node_forget(struct node *n, struct mcfs_slice tenant, struct mcfs_slice key);

/* verifier.c: checks large values in the background, soon after they were opened for the first time
 * since the store was.  free waits for the value that is being checked. */
struct verifier *verifier_new(struct node *n, struct mcfs_error *err);
void verifier_free(struct verifier *v);
/* Remembers a version to check; forgets it again when too many wait (the next open tries again). */
void verifier_add(struct verifier *v, struct mcfs_slice tenant, struct mcfs_slice key,
                  uint64_t version);

#endif
