/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/node/evict.h"
#include "fs/node/hold.h"
#include "fs/node/known.h"
#include "fs/node/node_private.h"
#include "fs/node/remote.h"

#include "backends/backends.h"
#include "backends/live.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/hash.h"
#include "common/log.h"

#include <inttypes.h>
#include <limits.h>

/* ---- what the session asks of the node ---- */

struct inventory_walk {
    bool (*emit)(const struct mcfs_object *object, void *arg);
    void *arg;
};

static bool inventory_one(const struct mcfs_object *o, void *arg)
{
    struct inventory_walk *w = arg;
    return w->emit(o, w->arg);
}

static int session_inventory(void *arg, bool (*emit)(const struct mcfs_object *o, void *emit_arg),
                             void *emit_arg, struct mcfs_error *err)
{
    struct node *n = arg;
    struct inventory_walk w = {emit, emit_arg};
    if (n->evictor)
        evictor_inventory_begin(n->evictor);
    int rc = n->ops->scan(n->store, inventory_one, &w, err);
    if (n->evictor)
        evictor_inventory_end(n->evictor);
    return rc;
}

void node_drop(struct node *n, struct mcfs_slice tenant, struct mcfs_slice key, uint64_t version)
{
    struct mcfs_backend_name name = {.tenant = tenant, .key = key, .version = version};
    if (n->config.dropping)
        n->config.dropping(n->config.arg, tenant, key, version);
    if (n->config.store.read_only)
        return; /* it is its owner's to drop */
    if (n->ops->remove(n->store, &name, 1))
        mcfs_warning("%s", name.err.msg);
}

static bool session_leaving(void *arg, const struct mcfs_object *o)
{
    struct node *n = arg;
    return n->evictor && evictor_leaving(n->evictor, o);
}

static void session_discard(void *arg, struct mcfs_slice tenant, struct mcfs_slice key,
                            uint64_t version)
{
    node_drop(arg, tenant, key, version);
}

static void session_recall(void *arg, struct mcfs_slice tenant, struct mcfs_slice key,
                           uint64_t version)
{
    struct node *n = arg;
    hold_cover(n->holds, tenant, key);
    known_forget(n->known, tenant, key);
    if (n->config.recall)
        n->config.recall(n->config.arg, tenant, key, version);
}

static void session_lost(void *arg)
{
    struct node *n = arg;
    hold_cover_all(n->holds);
    known_forget_all(n->known);
    if (n->config.lost)
        n->config.lost(n->config.arg);
}

static void session_usage(void *arg, uint64_t *capacity, uint64_t *used, uint64_t *objects)
{
    struct node *n = arg;
    struct mcfs_backend_stats stats;
    n->ops->stats(n->store, &stats);
    *capacity = stats.capacity_bytes;
    *used = stats.used_bytes;
    *objects = stats.objects;
}

static const struct mcfs_session_ops session_ops = {
    .inventory = session_inventory,
    .leaving = session_leaving,
    .discard = session_discard,
    .recall = session_recall,
    .lost = session_lost,
    .usage = session_usage,
};

/* ---- start and stop ---- */

static int open_store(struct node *n, struct mcfs_error *err)
{
    struct mcfs_backend_recovery found;
    struct mcfs_backend_config *config = &n->config.store;
    const char *name = n->config.backend ? n->config.backend : "bucket_storage_backend";
    config->dir = n->store_dir =
        config->dir ? strdup(config->dir) : state_dir_path(n->config.state, "backend");
    if (!n->store_dir)
        return mcfs_fail_errno(err, ENOMEM, "node");
    if (config->read_only && !n->config.backend)
        n->ops = mcfs_backend_recognise(config->dir, config->fsdir, err);
    else if (!(n->ops = mcfs_backend_find(name)))
        mcfs_fail(err, MCFS_INVALID_PARAMS, "no such storage backend: '%s'", name);
    if (n->ops && (config->read_only || mcfs_backend_fits(n->ops, config, err) == 0))
        n->store = config->read_only ? mcfs_backend_open_live(n->ops, config, &found, err)
                                     : n->ops->open(config, &found, err);
    if (!n->store)
        return -1;
    n->ops = n->store->ops;
    mcfs_info("%s: %" PRIu64 " objects, %" PRIu64 " bytes in %" PRIu64 " buckets; %" PRIu64
              " torn or corrupt objects dropped, %" PRIu64 " unknown files set aside in lost+found",
              n->store_dir, found.objects, found.bytes, found.buckets, found.dropped_objects,
              found.set_aside_files);
    return 0;
}

/* Where peers reach what listens there: an address that means every address of this machine is no
 * place to connect to from another, so its name stands for it. */
static char *reachable(const char *listen, uint16_t port)
{
    char name[256] = "";
    char *endpoint;
    const char *colon = strrchr(listen, ':');
    int len = (int)(colon - listen);
    bool any = (len == 7 && memcmp(listen, "0.0.0.0", 7) == 0) ||
               (len == 4 && memcmp(listen, "[::]", 4) == 0);
    if (any && gethostname(name, sizeof(name) - 1) == 0)
        return asprintf(&endpoint, "%s:%u", name, port) < 0 ? NULL : endpoint;
    return asprintf(&endpoint, "%.*s:%u", len, listen, port) < 0 ? NULL : endpoint;
}

/* Listens, so that the endpoint is known; serves only once there is a master to ask. */
static int listen_for_data(struct node *n, struct mcfs_error *err)
{
    struct mcfs_rpc_server_config config = {.handler = data_server_handle,
                                            .arg = n,
                                            .keys = n->keys,
                                            .threads = 4,
                                            .connections_max = 4096,
                                            .unix_send_bytes = 4u << 20};
    n->data = data_server_new(n);
    n->server = n->data ? mcfs_rpc_server_new(&config, err) : NULL;
    if (!n->server)
        return n->data ? -1 : mcfs_fail_errno(err, ENOMEM, "data server");
    const char *listen = n->config.listen_address;
    uint16_t port = 0;
    _cleanup_free_ char *socket = state_dir_path(n->config.state, "node.sock");
    _cleanup_free_ char *address = NULL;
    if (asprintf(&address, "unix:%s", socket) < 0)
        return mcfs_fail_errno(err, ENOMEM, "data server");
    if (mcfs_rpc_server_listen(n->server, address, NULL, err))
        return -1;
    if (listen) {
        if (!n->keys && !mcfs_rpc_address_is_local(listen))
            return mcfs_fail(err, MCFS_INVALID_PARAMS,
                             "%s: listening beyond loopback needs authentication (auth_key_file)",
                             listen);
        if (mcfs_rpc_server_listen(n->server, listen, &port, err))
            return -1;
        n->endpoint = reachable(listen, port);
    } else {
        n->endpoint = strdup(address);
    }
    if (!n->endpoint)
        return mcfs_fail_errno(err, ENOMEM, "data server");
    return 0;
}

/* Its own one begins first of all, and comes up while the store is being opened. */
static int start_master(struct node *n, struct mcfs_error *err)
{
    n->master_address = n->config.master_address;
    if (n->master_address)
        return 0;
    n->supervisor =
        supervisor_start(n->config.state, n->config.master_flags, &n->master_address, err);
    return n->supervisor ? 0 : -1;
}

static int connect_master(struct node *n, struct mcfs_error *err)
{
    char host[256] = "node";
    gethostname(host, sizeof(host) - 1);
    struct mcfs_master_config config = {.address = n->master_address,
                                        .timeout_ms = n->config.rpc_timeout_ms,
                                        .keys = n->keys,
                                        .node_id = n->config.state->node_id,
                                        .node_name = host,
                                        .endpoint = n->endpoint,
                                        .ops = &session_ops,
                                        .ops_arg = n};
    n->master = mcfs_master_open(&config, err);
    if (n->master)
        return 0;
    if (n->supervisor) {
        char words[200];
        supervisor_last_words(n->supervisor, words, sizeof(words));
        mcfs_error_prefix(err, "the node's own master did not come up (%s)", words);
    }
    return -1;
}

/* The store's owner has changed it. */
static void store_changed(void *arg)
{
    struct node *n = arg;
    mcfs_master_report_again(n->master);
}

static int watch_store(struct node *n, struct mcfs_error *err)
{
    if (!n->config.store.read_only || !n->config.refresh_ms)
        return 0;
    return mcfs_backend_watch(n->store, n->config.refresh_ms, store_changed, n, err);
}

/* A store that is somebody else's is theirs to evict from. */
static int open_evictor(struct node *n, struct mcfs_error *err)
{
    if (n->config.store.read_only)
        return 0;
    n->evictor = evictor_new(n, err);
    return n->evictor ? 0 : -1;
}

static int start_evictor(struct node *n, struct mcfs_error *err)
{
    return n->evictor ? evictor_start(n->evictor, err) : 0;
}

struct node *node_start(const struct node_config *config, struct mcfs_error *err)
{
    struct node *n = calloc(1, sizeof(*n));
    if (!n) {
        mcfs_fail_errno(err, ENOMEM, "node");
        return NULL;
    }
    n->config = *config;
    pthread_mutex_init(&n->peers_lock, NULL);
    for (unsigned i = 0; i < COMMIT_LOCKS; i++)
        pthread_mutex_init(&n->commit_locks[i], NULL);
    pthread_mutex_init(&n->exchange_lock, NULL);
    if (n->config.auth_key_file && !(n->keys = mcfs_rpc_keys_load(n->config.auth_key_file, err))) {
        node_stop(n, NULL);
        return NULL;
    }
    n->known = known_new();
    n->streams = streams_new();
    if (!n->known || !n->streams)
        mcfs_fail_errno(err, ENOMEM, "node");
    n->verifier = n->known && n->streams ? verifier_new(n, err) : NULL;
    n->held = n->verifier ? held_set_new(n, err) : NULL;
    n->holds = n->held ? holds_new(n, err) : NULL;
    if (!n->holds || start_master(n, err) || open_store(n, err) || node_finish_exchange(n, err) ||
        open_evictor(n, err) || listen_for_data(n, err) || connect_master(n, err) ||
        start_evictor(n, err) || mcfs_rpc_server_start(n->server, err) || watch_store(n, err)) {
        node_stop(n, NULL);
        return NULL;
    }
    return n;
}

int node_stop(struct node *n, struct mcfs_error *err)
{
    int rc = 0;
    if (!n)
        return 0;
    if (n->store && n->config.store.read_only)
        mcfs_backend_unwatch(n->store);
    evictor_stop(n->evictor);
    mcfs_rpc_server_stop(n->server);
    mcfs_master_close(n->master);
    data_server_free(n->data);
    supervisor_stop(n->supervisor);
    holds_free(n->holds);
    held_set_free(n->held);
    streams_free(n->streams);
    node_peers_free(n);
    verifier_free(n->verifier);
    if (n->store)
        rc = n->ops->close(n->store, err);
    evictor_free(n->evictor);
    known_free(n->known);
    pthread_mutex_destroy(&n->peers_lock);
    pthread_mutex_destroy(&n->exchange_lock);
    for (unsigned i = 0; i < COMMIT_LOCKS; i++)
        pthread_mutex_destroy(&n->commit_locks[i]);
    mcfs_rpc_keys_free(n->keys);
    free(n->endpoint);
    free(n->store_dir);
    free(n);
    return rc;
}

struct mcfs_master *node_master(struct node *n)
{
    return n->master;
}

const char *node_master_address(struct node *n)
{
    return n->master_address;
}

const char *node_endpoint(struct node *n)
{
    return n->endpoint;
}

struct mcfs_id node_id(struct node *n)
{
    return n->config.state->node_id;
}

void node_store_stats(struct node *n, struct mcfs_backend_stats *out)
{
    n->ops->stats(n->store, out);
}

const char *node_backend_name(struct node *n)
{
    return n->ops->name;
}

uint64_t node_lookup_hits(struct node *n)
{
    return known_hits(n->known);
}

int node_sync(struct node *n, struct mcfs_error *err)
{
    return n->ops->sync(n->store, err);
}
