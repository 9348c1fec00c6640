/* SPDX-License-Identifier: Apache-2.0 */
/* When something is evicted, and how much: watermarks, puts that do not fit, and the thread. */
#include "fs/node/evict_private.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/cond.h"
#include "common/log.h"

#include <inttypes.h>
#include <poll.h>

#define LOOK_MS 1000             /* how often the thread looks by itself */
#define LOG_MAX_BYTES (8u << 20) /* of the log, after which it is emptied within a pass */
#define RESUME_MS 60000          /* that what was refused in front is not asked for again */
#define FRUITLESS_MAX_MS 1000
#define WAIT_STEP_MS 20
#define PAUSE_MAX_MS 50
#define SETTLE_MS 2000  /* no signal ends this wait */
#define RECALL_MS 50    /* in which most of those who are asked for a lease have given it up */
#define REFUSED_MS 1000 /* for which puts do not wait for those who have not */

/* ---- how much is too much ---- */

/* What the store's files take; returns how much of it is there for objects. */
static uint64_t live_bytes(struct evictor *e, struct mcfs_backend_stats *s)
{
    e->n->ops->stats(e->n->store, s);
    return mcfs_backend_live_bytes(s);
}

/* Bytes above a share of what may be stored: of values, and of what their files take. */
static uint64_t excess(struct evictor *e, double ratio)
{
    const struct node_eviction *o = &e->n->config.eviction;
    struct mcfs_backend_stats s;
    uint64_t live = live_bytes(e, &s), over = 0;
    uint64_t most = (uint64_t)(ratio * (double)s.capacity_bytes);
    if (live > most)
        over = live - most;
    uint64_t most_values = (uint64_t)(ratio * (double)o->max_bytes);
    if (o->max_bytes && s.object_bytes > most_values)
        over = MCFS_MAX(over, s.object_bytes - most_values);
    return over;
}

static bool is_above(struct evictor *e)
{
    return e->n->config.eviction.watermarks && excess(e, e->n->config.eviction.high) > 0;
}

/* ---- a pass ---- */

struct pass {
    struct evictor *e;
    bool to_low;      /* down to the low watermark, not only for those who wait */
    bool patient;     /* what others lease is awaited; else younger objects go instead */
    bool again;       /* who was asked for a lease has had a moment to give it up */
    bool unasked;     /* the master was away */
    uint64_t awaited; /* bytes */
    size_t gone, leased, busy;
    struct mcfs_backend_cursor refused_to; /* nothing in front of it may go */
};

static uint64_t needed(struct pass *p)
{
    struct evictor *e = p->e;
    uint64_t over = p->to_low ? excess(e, e->n->config.eviction.low) : 0;
    MCFS_LOCK_SCOPE(&e->lock);
    uint64_t most = e->stopping ? 0 : MCFS_MAX(over, e->wanted);
    return most - MCFS_MIN(most, p->awaited);
}

/* What is written down is settled once the store's removals are durable. */
static int empty_log(struct evictor *e, struct mcfs_error *err)
{
    return e->n->ops->sync(e->n->store, err) || evict_log_clear(e->log, err) ? -1 : 0;
}

static int settle_log(struct evictor *e, struct mcfs_error *err)
{
    if (!evict_log_bytes(e->log) || evict_log_left(e->log))
        return 0;
    return empty_log(e, err);
}

/* Batches from the cursor on, until there is enough or nothing is left. */
static int walk(struct pass *p, struct mcfs_backend_cursor at, bool soft_too,
                struct mcfs_error *err)
{
    struct mcfs_backend_victim victims[EVICT_BATCH];
    struct evictor *e = p->e;
    struct evict_outcome out;
    for (uint64_t need; (need = needed(p)) > 0;) {
        /* Nothing is held back for a master that cannot be asked. */
        p->unasked = !mcfs_master_session_ready(e->n->master);
        if (p->unasked)
            return mcfs_fail(err, MCFS_RPC_FAIL, "no session with the master");
        int64_t n = e->n->ops->evict_choose(e->n->store, &at, need, victims, EVICT_BATCH, err);
        if (n < 0)
            return -1;
        if (n == 0)
            break;
        if (evict_batch(e, victims, (size_t)n, soft_too, &out, err)) {
            p->unasked = !mcfs_master_session_ready(e->n->master);
            return -1;
        }
        p->gone += out.gone;
        p->leased += out.leased;
        p->busy += out.busy;
        if (p->patient)
            p->awaited += out.leased_bytes;
        if (!p->gone && !p->leased)
            p->refused_to = at;
        if (evict_log_bytes(e->log) > LOG_MAX_BYTES && settle_log(e, err))
            return -1;
    }
    return 0;
}

static int run_pass(struct pass *p, const struct mcfs_backend_cursor *from, struct mcfs_error *err)
{
    static const struct mcfs_backend_cursor start;
    if (from && walk(p, *from, false, err))
        return -1;
    if (needed(p) && walk(p, start, false, err))
        return -1;
    /* Softly pinned objects go when nothing else is left: what has gone now may be enough for a put
     * that asks for more each time, until it fits. */
    return p->busy && !p->gone && needed(p) ? walk(p, start, true, err) : 0;
}

static void end_pass(struct pass *p, int64_t began_ms)
{
    struct evictor *e = p->e;
    int64_t now = mcfs_mono_ms();
    MCFS_LOCK_SCOPE(&e->lock);
    e->ended = e->begun;
    e->wanted = 0;
    if (!p->again)
        e->recall_over_ms = p->awaited > 0 ? now + RECALL_MS : 0;
    e->leases_met = p->leased > 0;
    e->unasked = p->unasked;
    /* All of it is not asked about again at once for every put that does not fit. */
    if (!p->gone && !p->leased && !p->unasked)
        e->fruitless_until_ms = now + MCFS_MIN((now - began_ms) * 10, FRUITLESS_MAX_MS);
    pthread_cond_broadcast(&e->changed);
}

/* What an inventory has told the master of is settled. */
static void settle_kept(struct evictor *e)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    MCFS_LOCK_SCOPE(&e->inventory_lock);
    if (evict_log_left(e->log) && atomic_load(&e->inventories) > e->kept_at &&
        mcfs_master_session_ready(e->n->master) && empty_log(e, &err))
        mcfs_warning("%s", err.msg);
}

/* What the thread keeps between passes. */
struct memory {
    struct mcfs_backend_cursor resume;
    int64_t resume_until_ms;
    bool complained;
};

static void pass(struct evictor *e, struct memory *memory)
{
    struct pass p = {.e = e};
    struct mcfs_error err = MCFS_ERROR_INIT;
    int64_t began = mcfs_mono_ms();
    bool resume = began < memory->resume_until_ms;
    {
        MCFS_LOCK_SCOPE(&e->lock);
        e->begun++;
        p.again = e->recall_over_ms && began >= e->recall_over_ms &&
                  began < e->recall_over_ms + REFUSED_MS;
        p.patient = !p.again || !e->wanted;
    }
    /* Above the watermark there is time: after a restart of the master all that is old counts as
     * leased for a while, and what was put since would go at once. */
    p.to_low = p.patient && is_above(e);
    int rc = run_pass(&p, resume ? &memory->resume : NULL, &err);
    struct mcfs_error settled = MCFS_ERROR_INIT;
    if (settle_log(e, &settled))
        mcfs_warning("%s", settled.msg);
    if (rc && !memory->complained)
        mcfs_warning("nothing is evicted: %s", err.msg);
    else if (rc == 0 && p.to_low && p.gone)
        mcfs_info("%zu objects evicted", p.gone);
    memory->complained = rc != 0;
    if (!resume) {
        memory->resume = p.refused_to;
        memory->resume_until_ms = began + RESUME_MS;
    }
    end_pass(&p, began);
}

static void *evictor_main(void *arg)
{
    struct evictor *e = arg;
    struct memory memory = {0};
    for (;;) {
        bool wanted;
        {
            MCFS_LOCK_SCOPE(&e->lock);
            /* Who was asked for a lease has a moment to give it up. */
            bool recalling = mcfs_mono_ms() < e->recall_over_ms;
            int64_t until_ms = recalling ? e->recall_over_ms : mcfs_mono_ms() + LOOK_MS;
            while (!e->stopping && mcfs_mono_ms() < until_ms &&
                   (recalling || (!e->wanted && !e->poked)))
                mcfs_cond_wait_until(&e->changed, &e->lock, until_ms * 1000000);
            if (e->stopping)
                return NULL;
            e->poked = false;
            wanted = e->wanted > 0;
        }
        settle_kept(e);
        if (wanted || is_above(e))
            pass(e, &memory);
    }
}

/* ---- puts ---- */

/* Waits until so many bytes have gone, or a pass that began after this call has ended. */
static int wait_for_pass(struct evictor *e, uint64_t bytes, uint64_t freed_before,
                         const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    MCFS_LOCK_SCOPE(&e->lock);
    uint64_t mine = e->begun;
    for (;;) {
        uint64_t freed = e->freed - freed_before;
        struct pollfd p = {.fd = cancel ? cancel->fd : -1, .events = POLLIN};
        if (freed >= bytes || e->ended > mine || e->stopping)
            return 0;
        if (poll(&p, 1, 0) > 0)
            return mcfs_fail_errno(err, EINTR, "waiting for an eviction");
        e->wanted = MCFS_MAX(e->wanted, bytes - freed);
        pthread_cond_broadcast(&e->changed);
        mcfs_cond_wait_until(&e->changed, &e->lock, mcfs_mono_ns() + WAIT_STEP_MS * 1000000ll);
    }
}

/* Makes room for a put; -1 with err as it was (the put's) when nothing may go, or EINTR.  What
 * others lease is asked back, and waited for as for any change; a master that is away is waited for
 * as for any answer of it. */
static int make_room(struct evictor *e, uint64_t bytes, int64_t until_ms,
                     const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    struct mcfs_error why = MCFS_ERROR_INIT;
    int64_t fruitless_ms, back_ms = mcfs_mono_ms() + e->n->config.rpc_timeout_ms;
    uint64_t before;
    {
        MCFS_LOCK_SCOPE(&e->lock);
        before = e->freed;
        fruitless_ms = e->fruitless_until_ms - mcfs_mono_ms();
    }
    if (e->n->config.may_wait)
        e->n->config.may_wait();
    struct pollfd stop = {.fd = cancel ? cancel->fd : -1, .events = POLLIN};
    if (fruitless_ms > 0)
        poll(&stop, 1, (int)fruitless_ms);
    for (int pause_ms = 1;; pause_ms = MCFS_MIN(pause_ms * 2, PAUSE_MAX_MS)) {
        if (wait_for_pass(e, bytes, before, cancel, &why)) {
            *err = why;
            return -1;
        }
        {
            MCFS_LOCK_SCOPE(&e->lock);
            if (e->freed > before)
                return 0;
            bool wait = (e->leases_met && mcfs_mono_ms() < until_ms) ||
                        (e->unasked && mcfs_mono_ms() < back_ms);
            if (e->stopping || !wait)
                return -1;
        }
        poll(&stop, 1, pause_ms);
    }
}

/* Bytes that must go for a put of this size, as far as can be told: all of it when it does not. */
static uint64_t shortfall(struct evictor *e, uint64_t size)
{
    uint64_t most = e->n->config.eviction.max_bytes, values = 0, files = 0;
    struct mcfs_backend_stats s;
    uint64_t live = live_bytes(e, &s);
    if (live + size > s.capacity_bytes)
        files = live + size - s.capacity_bytes;
    if (most && s.object_bytes + size > most)
        values = s.object_bytes + size - most;
    return values || files ? MCFS_MAX(values, files) : size;
}

/* Whether a value of this size can ever be stored. */
static bool is_too_large(struct evictor *e, uint64_t size)
{
    struct mcfs_backend_stats s;
    e->n->ops->stats(e->n->store, &s);
    return size > s.capacity_bytes;
}

/* The limit on values, which the store does not know. */
static int check_values(struct evictor *e, struct mcfs_error *err)
{
    uint64_t most = e->n->config.eviction.max_bytes, coming = atomic_load(&e->coming);
    struct mcfs_backend_stats s;
    if (!most)
        return 0;
    e->n->ops->stats(e->n->store, &s);
    if (s.object_bytes + coming <= most)
        return 0;
    return mcfs_fail(err, MCFS_NO_AVAILABLE_HANDLE,
                     "the tier is full (%" PRIu64 " of %" PRIu64 " bytes of values)",
                     s.object_bytes, most);
}

static int put(struct evictor *e, struct mcfs_backend_put *item, const struct mcfs_cancel *cancel)
{
    uint64_t size = item->object.size, most = e->n->config.eviction.max_bytes;
    uint64_t whole = size + item->object.tenant.len + item->object.key.len + 1, bytes = 0;
    int64_t until_ms = mcfs_mono_ms() + e->n->config.lease_wait_ms;
    for (;;) {
        item->err = (struct mcfs_error)MCFS_ERROR_INIT;
        if (check_values(e, &item->err) == 0 && e->n->ops->put(e->n->store, item, 1) == 0)
            return 0;
        if (item->err.code != MCFS_NO_AVAILABLE_HANDLE || !e->active || (most && size > most) ||
            is_too_large(e, size))
            return -1;
        /* Not all that goes is given back by the file system, as blocks are shared: more then. */
        bytes = bytes ? MCFS_MIN(MCFS_MAX(bytes, whole / 2) * 2, 1ull << 40) : shortfall(e, whole);
        if (make_room(e, bytes, until_ms, cancel, &item->err))
            return -1;
    }
}

int evictor_put(struct evictor *e, struct mcfs_backend_put *item, const struct mcfs_cancel *cancel)
{
    atomic_fetch_add(&e->coming, item->object.size);
    int rc = put(e, item, cancel);
    atomic_fetch_sub(&e->coming, item->object.size);
    if (rc == 0 && e->active && is_above(e)) {
        MCFS_LOCK_SCOPE(&e->lock);
        e->poked = true;
        pthread_cond_broadcast(&e->changed);
    }
    return rc;
}

/* ---- readers, inventories ---- */

static bool is_held(const struct evictor *e, uint64_t version)
{
    for (size_t i = 0; i < e->held_count; i++)
        if (e->held[i].version == version)
            return true;
    return false;
}

static bool is_name_held(const struct evictor *e, const struct mcfs_object *o)
{
    for (size_t i = 0; i < e->held_count; i++)
        if (e->held[i].version == o->version && mcfs_slice_eq(e->held[i].key, o->key) &&
            mcfs_slice_eq(e->held[i].tenant, o->tenant))
            return true;
    return false;
}

bool evictor_settle(struct evictor *e, uint64_t version)
{
    MCFS_LOCK_SCOPE(&e->lock);
    if (!is_held(e, version))
        return false;
    if (e->n->config.may_wait)
        e->n->config.may_wait();
    int64_t until = mcfs_mono_ns() + SETTLE_MS * 1000000ll;
    while (is_held(e, version) && mcfs_mono_ns() < until)
        mcfs_cond_wait_until(&e->changed, &e->lock, until);
    return true;
}

bool evictor_leaving(struct evictor *e, const struct mcfs_object *o)
{
    {
        MCFS_LOCK_SCOPE(&e->lock);
        if (is_name_held(e, o))
            return true;
    }
    return evict_log_has(e->log, o->tenant, o->key, o->version);
}

void evictor_inventory_begin(struct evictor *e)
{
    pthread_mutex_lock(&e->inventory_lock);
    atomic_fetch_add(&e->inventories, 1);
}

void evictor_inventory_end(struct evictor *e)
{
    pthread_mutex_unlock(&e->inventory_lock);
}

void node_eviction_counts(struct node *n, uint64_t *passes, uint64_t *refused)
{
    *passes = *refused = 0;
    if (!n->evictor)
        return;
    MCFS_LOCK_SCOPE(&n->evictor->lock);
    *passes = n->evictor->ended;
    *refused = atomic_load(&n->evictor->refused);
}

/* ---- start and stop ---- */

struct evictor *evictor_new(struct node *n, struct mcfs_error *err)
{
    const char *policy = n->config.store.eviction_policy;
    bool active = policy && strcmp(policy, "none") != 0;
    if (active && !n->ops->evict_choose) {
        mcfs_fail(err, MCFS_INVALID_PARAMS, "eviction=%s: a store of the kind %s evicts nothing",
                  policy, n->ops->name);
        return NULL;
    }
    struct evictor *e = calloc(1, sizeof(*e));
    _cleanup_free_ char *path = state_dir_path(n->config.state, "evicting");
    if (!e || mcfs_cancel_init(&e->stop)) {
        free(e);
        mcfs_fail_errno(err, ENOMEM, "evictor");
        return NULL;
    }
    e->n = n;
    e->active = active;
    pthread_mutex_init(&e->lock, NULL);
    pthread_mutex_init(&e->inventory_lock, NULL);
    mcfs_cond_init(&e->changed);
    e->log = evict_log_open(path, err);
    if (e->log)
        return e;
    evictor_free(e);
    return NULL;
}

int evictor_start(struct evictor *e, struct mcfs_error *err)
{
    if (evict_log_left(e->log))
        mcfs_info(
            "%zu objects were being evicted when the last process ended; the master has "
            "been told",
            evict_log_left(e->log));
    {
        MCFS_LOCK_SCOPE(&e->inventory_lock); /* another one may be under way, and asks the log */
        if (evict_log_bytes(e->log) && empty_log(e, err))
            return -1;
    }
    int rc = e->active ? pthread_create(&e->thread, NULL, evictor_main, e) : 0;
    if (rc)
        return mcfs_fail_errno(err, rc, "evictor's thread");
    e->started = e->active;
    return 0;
}

void evictor_stop(struct evictor *e)
{
    if (!e || !e->started)
        return;
    {
        MCFS_LOCK_SCOPE(&e->lock);
        e->stopping = true;
        pthread_cond_broadcast(&e->changed);
    }
    mcfs_cancel_set(&e->stop);
    pthread_join(e->thread, NULL);
    e->started = false;
}

void evictor_free(struct evictor *e)
{
    if (!e)
        return;
    evict_log_free(e->log);
    mcfs_cancel_free(&e->stop);
    pthread_mutex_destroy(&e->lock);
    pthread_mutex_destroy(&e->inventory_lock);
    pthread_cond_destroy(&e->changed);
    free(e);
}
