/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/node/hold.h"

#include "common/cleanup.h"
#include "common/cond.h"
#include "common/id.h"
#include "common/log.h"
#include "fs/node/remote.h"

#define HOLD_MS 60000   /* asked for at a time */
#define RENEW_MS 20000  /* asked for again after */
#define RETRY_MS 1000   /* after nobody answered */
#define SWEEP_MS 5000   /* how late what peers let us hold may be let go */
#define NEVER INT64_MAX /* the version is gone */

struct holds {
    struct node *node;
    pthread_t thread;
    pthread_mutex_t lock; /* guards what follows, and all holds' due_ms, held and busy */
    pthread_cond_t changed;
    struct hold *first;
    atomic_uint count;     /* of what is open, so that a change of a key seldom takes the lock */
    struct ending *ending; /* what is held and was closed */
    uint64_t round;        /* counts the calls of cover */
    bool stop;
};

/* A request to let go.  The thread sends it, since nobody should wait for a peer at close(2). */
struct ending {
    struct ending *next;
    char endpoint[ENDPOINT_SIZE];
    struct mcfs_buf params;
};

static void put_params(struct node *n, const struct hold *h, uint64_t ms, struct mcfs_buf *p)
{
    char id[MCFS_ID_TEXT_MAX];
    mp_put_array(p, 5);
    mp_put_cstr(p, mcfs_id_format(n->config.state->node_id, id));
    mp_put_str(p, h->tenant);
    mp_put_str(p, h->key);
    mp_put_uint(p, h->version);
    mp_put_uint(p, ms);
}

static int ask(struct node *n, const char *endpoint, const struct mcfs_buf *params,
               struct mcfs_error *err)
{
    _cleanup_reply_ struct mcfs_rpc_reply reply = MCFS_RPC_REPLY_INIT;
    struct mcfs_rpc_client *client = node_peer_client(n, endpoint, true, err);
    return client ? mcfs_rpc_call(client, "HoldReplica", params, &reply, NULL, err) : -1;
}

/* Has the version held; when to come again.  The hold is busy, and so stays. */
static int64_t take(struct node *n, struct hold *h)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    _cleanup_buf_ struct mcfs_buf params = MCFS_BUF_INIT;
    bool gone = true;
    put_params(n, h, HOLD_MS, &params);
    for (uint32_t i = 0; i < h->object->replica_count; i++) {
        const struct mcfs_master_replica *r = &h->object->replicas[i];
        if (!node_replica_is_remote(n, r) || strlen(r->endpoint) >= ENDPOINT_SIZE)
            continue;
        if (ask(n, r->endpoint, &params, &err) == 0) {
            strcpy(h->endpoint, r->endpoint);
            return mcfs_mono_ms() + RENEW_MS;
        }
        gone &= err.code == MCFS_REPLICA_IS_GONE;
    }
    if (gone)
        return NEVER;
    mcfs_warning("%.*s: what is open of it may be lost when it is replaced: %s",
                 (int)MCFS_MIN(h->key.len, 200), h->key.data, err.msg);
    return mcfs_mono_ms() + RETRY_MS;
}

/* Under the lock, which is given up meanwhile. */
static void take_now(struct holds *hs, struct hold *h)
{
    h->busy = true;
    pthread_mutex_unlock(&hs->lock);
    int64_t due_ms = take(hs->node, h);
    pthread_mutex_lock(&hs->lock);
    h->held = h->endpoint[0] && due_ms != NEVER;
    h->due_ms = due_ms;
    h->tried = hs->round;
    h->busy = false;
    pthread_cond_broadcast(&hs->changed);
}

static struct hold *find_due(struct holds *hs, int64_t now, int64_t *next_ms)
{
    for (struct hold *h = hs->first; h; h = h->next) {
        if (h->busy)
            continue;
        if (h->due_ms <= now)
            return h;
        *next_ms = MCFS_MIN(*next_ms, h->due_ms);
    }
    return NULL;
}

/* Under the lock, which is given up meanwhile. */
static void end_one(struct holds *hs)
{
    struct ending *e = hs->ending;
    hs->ending = e->next;
    pthread_mutex_unlock(&hs->lock);
    ask(hs->node, e->endpoint, &e->params, NULL); /* unanswered, it ends by itself */
    mcfs_buf_free(&e->params);
    free(e);
    pthread_mutex_lock(&hs->lock);
}

static void *holds_main(void *arg)
{
    struct holds *hs = arg;
    int64_t sweep_ms = 0;
    MCFS_LOCK_SCOPE(&hs->lock);
    while (!hs->stop) {
        int64_t now = mcfs_mono_ms(), next_ms = now + SWEEP_MS;
        if (now >= sweep_ms) {
            held_set_sweep(hs->node->held);
            streams_sweep(hs->node->streams);
            sweep_ms = now + SWEEP_MS;
        }
        struct hold *h = find_due(hs, now, &next_ms);
        if (h)
            take_now(hs, h);
        else if (hs->ending)
            end_one(hs);
        else
            mcfs_cond_wait_until(&hs->changed, &hs->lock, next_ms * 1000000);
    }
    return NULL;
}

struct holds *holds_new(struct node *n, struct mcfs_error *err)
{
    struct holds *hs = calloc(1, sizeof(*hs));
    if (!hs) {
        mcfs_fail_errno(err, ENOMEM, "open replicas");
        return NULL;
    }
    hs->node = n;
    pthread_mutex_init(&hs->lock, NULL);
    mcfs_cond_init(&hs->changed);
    int rc = pthread_create(&hs->thread, NULL, holds_main, hs);
    if (rc == 0)
        return hs;
    mcfs_fail_errno(err, rc, "thread of open replicas");
    free(hs);
    return NULL;
}

void holds_free(struct holds *hs)
{
    if (!hs)
        return;
    pthread_mutex_lock(&hs->lock);
    hs->stop = true;
    pthread_cond_broadcast(&hs->changed);
    pthread_mutex_unlock(&hs->lock);
    pthread_join(hs->thread, NULL);
    for (struct ending *e = hs->ending, *next; e; e = next) {
        next = e->next;
        mcfs_buf_free(&e->params);
        free(e);
    }
    pthread_cond_destroy(&hs->changed);
    pthread_mutex_destroy(&hs->lock);
    free(hs);
}

void hold_add(struct holds *hs, struct hold *h, uint32_t lease_ms)
{
    MCFS_LOCK_SCOPE(&hs->lock);
    h->due_ms = mcfs_mono_ms() + lease_ms / 2;
    h->prev = NULL;
    h->next = hs->first;
    if (h->next)
        h->next->prev = h;
    hs->first = h;
    if (atomic_fetch_add(&hs->count, 1) == 0 || lease_ms / 2 < SWEEP_MS)
        pthread_cond_broadcast(&hs->changed);
}

void hold_remove(struct holds *hs, struct hold *h)
{
    MCFS_LOCK_SCOPE(&hs->lock);
    while (h->busy)
        pthread_cond_wait(&hs->changed, &hs->lock);
    if (h->next)
        h->next->prev = h->prev;
    *(h->prev ? &h->prev->next : &hs->first) = h->next;
    atomic_fetch_sub(&hs->count, 1);
    struct ending *e = h->held ? calloc(1, sizeof(*e)) : NULL;
    if (!e)
        return;
    strcpy(e->endpoint, h->endpoint);
    put_params(hs->node, h, 0, &e->params);
    e->next = hs->ending;
    hs->ending = e;
    pthread_cond_broadcast(&hs->changed);
}

bool hold_now(struct holds *hs, struct hold *h)
{
    MCFS_LOCK_SCOPE(&hs->lock);
    while (h->busy)
        pthread_cond_wait(&hs->changed, &hs->lock);
    if (!h->held && h->due_ms != NEVER)
        take_now(hs, h);
    return h->due_ms != NEVER;
}

/* One that is not covered and has not been tried in this round; *wait: another thread is at it. */
static struct hold *find_uncovered(struct holds *hs, const struct mcfs_slice *tenant,
                                   const struct mcfs_slice *key, uint64_t round, bool *wait)
{
    *wait = false;
    for (struct hold *h = hs->first; h; h = h->next) {
        if (h->held || h->due_ms == NEVER || h->tried >= round ||
            (key && (!mcfs_slice_eq(h->key, *key) || !mcfs_slice_eq(h->tenant, *tenant))))
            continue;
        if (!h->busy)
            return h;
        *wait = true;
    }
    return NULL;
}

static void cover(struct holds *hs, const struct mcfs_slice *tenant, const struct mcfs_slice *key)
{
    struct hold *h;
    bool wait;
    if (atomic_load(&hs->count) == 0)
        return;
    MCFS_LOCK_SCOPE(&hs->lock);
    uint64_t round = ++hs->round;
    while ((h = find_uncovered(hs, tenant, key, round, &wait)) || wait) {
        if (h)
            take_now(hs, h);
        else
            pthread_cond_wait(&hs->changed, &hs->lock);
    }
}

void hold_cover(struct holds *hs, struct mcfs_slice tenant, struct mcfs_slice key)
{
    cover(hs, &tenant, &key);
}

void hold_cover_all(struct holds *hs)
{
    cover(hs, NULL, NULL);
}
