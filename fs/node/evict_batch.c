/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One batch of an eviction.  A crash at any point leaves no name without bytes, as bytes go only
 * when the master has withdrawn them; and does not bring back what it has withdrawn, as the next
 * process says what this one was evicting.
 *
 * While the master is asked, and when its answer does not come, an inventory says so of the
 * victims.
 *
 * A session that is made anew in the middle reports the store to a master that may know nothing of
 * what the last one withdrew.  So victims go while no inventory walks the store, and when one has
 * begun since the master was asked, it is asked again.
 */
#include "fs/node/evict_private.h"

#include "common/cleanup.h"
#include "common/log.h"
#include "fs/node/known.h"

struct batch {
    struct evictor *e;
    struct mcfs_backend_victim *victims;
    size_t n;
    bool locked[COMMIT_LOCKS];
    bool mine[EVICT_BATCH]; /* its key could be locked */
    /* Copies of the names, as the store's end with the victims. */
    struct mcfs_buf names;
    struct evict_name name[EVICT_BATCH];
    struct evict_name locked_names[EVICT_BATCH];
    size_t locked_count;
    struct mcfs_master_eviction items[EVICT_BATCH];
    size_t item_of[EVICT_BATCH], items_count;
};

static int copy_names(struct batch *b, struct mcfs_error *err)
{
    for (size_t i = 0; i < b->n; i++) {
        mcfs_buf_append(&b->names, b->victims[i].tenant.data, b->victims[i].tenant.len);
        mcfs_buf_append(&b->names, b->victims[i].key.data, b->victims[i].key.len);
    }
    if (b->names.failed)
        return mcfs_fail_errno(err, ENOMEM, "eviction");
    const char *at = (const char *)b->names.data;
    for (size_t i = 0; i < b->n; i++) {
        const struct mcfs_backend_victim *v = &b->victims[i];
        b->name[i] = (struct evict_name){mcfs_slice(at, v->tenant.len),
                                         mcfs_slice(at + v->tenant.len, v->key.len), v->version};
        at += v->tenant.len + v->key.len;
    }
    return 0;
}

/* What this node is changing itself is passed over. */
static void lock_keys(struct batch *b)
{
    for (size_t i = 0; i < b->n; i++) {
        b->mine[i] = node_try_lock_key(b->e->n, b->name[i].key, b->locked);
        if (b->mine[i])
            b->locked_names[b->locked_count++] = b->name[i];
    }
}

/* From now on no look-up is cached, here or in the kernel, and what was is dropped. */
static void drop_caches(struct batch *b)
{
    struct node *n = b->e->n;
    for (size_t i = 0; i < b->n; i++) {
        const struct evict_name *name = &b->name[i];
        if (!b->mine[i])
            continue;
        if (n->config.dropping)
            n->config.dropping(n->config.arg, name->tenant, name->key, name->version);
        known_block(n->known, name->tenant, name->key);
        if (n->config.evicting)
            n->config.evicting(n->config.arg, name->tenant, name->key, name->version);
    }
    if (n->config.forget_names)
        n->config.forget_names(n->config.arg);
}

static void allow_caches(struct batch *b)
{
    for (size_t i = 0; i < b->n; i++)
        if (b->mine[i])
            known_unblock(b->e->n->known, b->name[i].tenant, b->name[i].key);
}

/* Marks the victims whose keys are locked; whoever meets one waits for the batch from now on. */
static void hold(struct batch *b)
{
    struct evictor *e = b->e;
    {
        MCFS_LOCK_SCOPE(&e->lock);
        e->held = b->locked_names;
        e->held_count = b->locked_count;
    }
    for (size_t i = 0; i < b->n; i++) {
        if (!b->mine[i] || !e->n->ops->evict_hold(e->n->store, &b->victims[i], 1))
            continue;
        b->item_of[b->items_count] = i;
        b->items[b->items_count++] =
            (struct mcfs_master_eviction){b->name[i].tenant, b->name[i].key, b->name[i].version, 0};
    }
}

static int write_down(struct batch *b, struct mcfs_error *err)
{
    _cleanup_buf_ struct mcfs_buf records = MCFS_BUF_INIT;
    for (size_t i = 0; i < b->items_count; i++)
        evict_record_put(&records, &b->name[b->item_of[i]]);
    return evict_log_append(b->e->log, &records, err);
}

/* With 0 the inventory lock is held: what was answered is so still. */
static int ask(struct batch *b, bool soft_too, struct mcfs_error *err)
{
    struct evictor *e = b->e;
    for (;;) {
        uint64_t before = atomic_load(&e->inventories);
        if (mcfs_master_evict(e->n->master, b->items, (uint32_t)b->items_count, soft_too, &e->stop,
                              err))
            return -1;
        pthread_mutex_lock(&e->inventory_lock);
        if (atomic_load(&e->inventories) == before)
            return 0;
        pthread_mutex_unlock(&e->inventory_lock);
    }
}

static void take_answers(struct batch *b, struct evict_outcome *out)
{
    for (size_t i = 0; i < b->items_count; i++) {
        struct mcfs_backend_victim *v = &b->victims[b->item_of[i]];
        int code = b->items[i].code;
        v->gone = code == 0 || code == MCFS_REPLICA_IS_GONE;
        out->gone += v->gone;
        out->leased += code == MCFS_OBJECT_HAS_LEASE;
        out->busy += code == MCFS_OBJECT_REPLICA_BUSY;
        /* What the name takes counts, too, so that empty objects are worth evicting. */
        uint64_t bytes = v->size + v->tenant.len + v->key.len + 1;
        if (v->gone)
            out->freed += bytes;
        else if (code == MCFS_OBJECT_HAS_LEASE)
            out->leased_bytes += bytes;
    }
}

/* Removes what is gone, takes the rest back, and lets everybody go on. */
static void finish(struct batch *b)
{
    struct evictor *e = b->e;
    if (e->n->ops->evict_end(e->n->store, b->victims, b->n))
        for (size_t i = 0; i < b->n; i++)
            if (b->victims[i].err.code)
                mcfs_error("an evicted object stays in the store: %s", b->victims[i].err.msg);
    MCFS_LOCK_SCOPE(&e->lock);
    e->held = NULL;
    e->held_count = 0;
    pthread_cond_broadcast(&e->changed);
}

/* The master was asked, and nobody knows what it has done.  The next inventory, which is asked for
 * here, says that these were being evicted, so that none comes back that others have seen go. */
static void keep_unanswered(struct batch *b, const struct mcfs_error *why)
{
    struct evictor *e = b->e;
    if (why->code != MCFS_RPC_FAIL && why->code != MCFS_RPC_TIMEOUT && why->errnum != EINTR)
        return; /* it has said that it did nothing */
    for (size_t i = 0; i < b->items_count; i++)
        if (evict_log_keep(e->log, &b->name[b->item_of[i]], 1))
            mcfs_warning("no memory to remember what was being evicted");
    e->kept_at = atomic_load(&e->inventories);
    mcfs_master_report_again(e->n->master);
}

/* The kernel forgets the rest of what it had of them, which may wait for others: nothing is locked
 * any more. */
static void tell_evicted(struct batch *b)
{
    struct node *n = b->e->n;
    for (size_t i = 0; i < b->items_count; i++) {
        const struct evict_name *name = &b->name[b->item_of[i]];
        if (n->config.evicted && b->victims[b->item_of[i]].gone)
            n->config.evicted(n->config.arg, name->tenant, name->key, name->version);
    }
}

static int run(struct batch *b, bool soft_too, struct evict_outcome *out, struct mcfs_error *err)
{
    struct evictor *e = b->e;
    lock_keys(b);
    drop_caches(b);
    hold(b);
    bool asked = b->items_count > 0;
    int rc = asked ? write_down(b, err) : 0;
    asked &= rc == 0;
    if (asked && (rc = ask(b, soft_too, err))) {
        pthread_mutex_lock(&e->inventory_lock);
        keep_unanswered(b, err);
    } else if (asked) {
        take_answers(b, out);
    }
    finish(b);
    if (asked)
        pthread_mutex_unlock(&e->inventory_lock);
    allow_caches(b);
    node_unlock_locked(e->n, b->locked);
    return rc;
}

int evict_batch(struct evictor *e, struct mcfs_backend_victim *victims, size_t n, bool soft_too,
                struct evict_outcome *out, struct mcfs_error *err)
{
    *out = (struct evict_outcome){0};
    struct batch *b = calloc(1, sizeof(*b));
    if (!b) {
        e->n->ops->evict_end(e->n->store, victims, n);
        return mcfs_fail_errno(err, ENOMEM, "eviction");
    }
    b->e = e;
    b->victims = victims;
    b->n = n;
    int rc = copy_names(b, err);
    if (rc)
        e->n->ops->evict_end(e->n->store, victims, n);
    else
        rc = run(b, soft_too, out, err);
    atomic_fetch_add(&e->refused, rc ? 0 : b->items_count - out->gone);
    {
        MCFS_LOCK_SCOPE(&e->lock);
        e->freed += out->freed;
        e->wanted -= MCFS_MIN(e->wanted, out->freed);
        pthread_cond_broadcast(&e->changed);
    }
    if (rc == 0)
        tell_evicted(b);
    mcfs_buf_free(&b->names);
    free(b);
    return rc;
}
