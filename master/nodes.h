/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_MASTER_NODES_H
#define MCFS_MASTER_NODES_H

/*
 * The nodes (Mooncake's clients) that have registered: who they are, whether they answer, and what
 * they have still to be told.  A node keeps its number, and what it stores stays in the directory,
 * while it is away.
 *
 * Thread safe; the lock is inside every lock of the directory.
 */

#include "common/rpc/rpc.h"
#include <mooncakefs/error.h>
#include <mooncakefs/object.h>

struct nodes;

/* state_dir: where to remember the nodes across restarts, or NULL. */
struct nodes *nodes_new(const char *state_dir, uint32_t client_ttl_ms, struct mcfs_error *err);
void nodes_free(struct nodes *n);

struct node_info {
    struct mcfs_id id;
    char name[256], endpoint[256];
    bool connected; /* answers, and its inventory is complete */
    uint64_t capacity_bytes, used_bytes;
    int64_t silent_ms; /* since it was last heard of */
};

/* A node registers on a connection; what it was connected by before is forgotten.  The key of its
 * first registration is remembered with it: one that is bound to tenants cannot take over a node
 * that came with another (ILLEGAL_CLIENT), whose objects it could then withdraw. */
int nodes_register(struct nodes *n, uint32_t number, const struct node_info *info,
                   const struct mcfs_rpc_key *key, struct mcfs_rpc_conn *conn,
                   struct mcfs_error *err);

/* Whether a node's first registration was made with the key of that name. */
bool nodes_came_with(struct nodes *n, uint32_t number, const char *key);

/* Its inventory is complete: its replicas can be read from now on. */
void nodes_ready(struct nodes *n, uint32_t number);

/* Heard of it; false when it is not registered. */
bool nodes_ping(struct nodes *n, uint32_t number, uint64_t capacity, uint64_t used);

/* Whether the number is a registered node whose connection is there. */
bool nodes_registered(struct nodes *n, uint32_t number);

void nodes_disconnected(struct nodes *n, struct mcfs_rpc_conn *conn);

/* Disconnects those that have been silent for the TTL; returns how many. */
uint32_t nodes_expire(struct nodes *n);

bool nodes_connected(struct nodes *n, uint32_t number);

/* Whether every node that an earlier master knew has registered with this one. */
bool nodes_all_back(struct nodes *n);

/* Whether the node is connected or has been within the last `ms`: it may hold a lease of that
 * length. */
bool nodes_heard_within(struct nodes *n, uint32_t number, int64_t ms);

/* Copies what is known of a node; false when there is no such node. */
bool nodes_get(struct nodes *n, uint32_t number, struct node_info *out);

/* The greatest number in use. */
uint32_t nodes_max(struct nodes *n);
uint32_t nodes_count_connected(struct nodes *n);

/* Sends a notification on the node's connection, if there is one. */
void nodes_notify(struct nodes *n, uint32_t number, const char *method,
                  const struct mcfs_buf *params);

/* Remembers that the node stores a version that is nobody's, and tells it. */
void nodes_discard(struct nodes *n, uint32_t number, struct mcfs_slice tenant,
                   struct mcfs_slice key, uint64_t version);
bool nodes_is_discarded(struct nodes *n, uint32_t number, uint64_t version);
void nodes_discarded(struct nodes *n, uint32_t number, uint64_t version);

/* Tells the node again what it has not answered yet; returns how many. */
uint32_t nodes_resend_discards(struct nodes *n, uint32_t number);

#endif
