/* SPDX-License-Identifier: Apache-2.0 */
/* Connections to the nodes that store what this one does not. */
#include "fs/node/node_private.h"

#include "common/cleanup.h"

#define QUICK_TIMEOUT_MS 2000

static struct peer *find(struct node *n, const char *endpoint)
{
    for (unsigned i = 0; i < n->peer_count; i++)
        if (strcmp(n->peers[i].endpoint, endpoint) == 0)
            return &n->peers[i];
    return NULL;
}

static struct peer *add(struct node *n, const char *endpoint, struct mcfs_error *err)
{
    if (n->peer_count == PEERS_MAX) {
        mcfs_fail(err, MCFS_RPC_FAIL, "more than %d peers", PEERS_MAX);
        return NULL;
    }
    struct peer *p = &n->peers[n->peer_count];
    *p = (struct peer){.endpoint = strdup(endpoint)};
    if (!p->endpoint) {
        mcfs_fail_errno(err, ENOMEM, "%s", endpoint);
        return NULL;
    }
    n->peer_count++;
    return p;
}

struct mcfs_rpc_client *node_peer_client(struct node *n, const char *endpoint, bool quick,
                                         struct mcfs_error *err)
{
    MCFS_LOCK_SCOPE(&n->peers_lock);
    struct peer *p = find(n, endpoint);
    if (!p && !(p = add(n, endpoint, err)))
        return NULL;
    struct mcfs_rpc_client **client = quick ? &p->quick : &p->client;
    uint32_t timeout_ms = n->config.rpc_timeout_ms;
    if (!*client)
        *client = mcfs_rpc_client_new(
            endpoint, n->keys, quick ? MCFS_MIN(timeout_ms, QUICK_TIMEOUT_MS) : timeout_ms, err);
    return *client;
}

void node_peers_free(struct node *n)
{
    for (unsigned i = 0; i < n->peer_count; i++) {
        if (n->peers[i].client)
            mcfs_rpc_client_free(n->peers[i].client);
        if (n->peers[i].quick)
            mcfs_rpc_client_free(n->peers[i].quick);
        free(n->peers[i].endpoint);
    }
}
