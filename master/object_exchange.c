/* SPDX-License-Identifier: Apache-2.0 */
/* Two objects get each other's names in one step. */
#include "master/object_change.h"
#include "master/object_memory.h"
#include "master/pending.h"

#include "common/cleanup.h"

/* One of the two, as it was. */
struct old_side {
    uint32_t slot;
    struct put_end content; /* what the other one gets, */
    uint16_t pin;           /* with these */
    uint64_t soft_pin_ms;
    int64_t started_ms;      /* the put that gives it its new content */
    struct memory_move next; /* the other's memory replicas and group, for this one */
};

static int find_side(struct directory *d, const struct exchange *x,
                     const struct exchange_side *side, uint32_t tenant, struct old_side *old,
                     struct mcfs_error *err)
{
    *old = (struct old_side){0};
    old->slot = tenant ? shard_find(d, key_hash(x->tenant, side->key), tenant, side->key) : 0;
    if (!old->slot)
        return mcfs_fail(err, MCFS_OBJECT_NOT_FOUND, "%.*s: no such object",
                         (int)MCFS_MIN(side->key.len, 200), side->key.data);
    const struct record *r = record_at(d, old->slot);
    old->content = (struct put_end){
        .client = x->client, .size = r->size, .attr = record_attr(d, r), .data_type = r->data_type};
    old->pin = r->flags & RECORD_HARD_PIN;
    if (r->flags & RECORD_SOFT_PIN)
        old->soft_pin_ms = soft_pin_left_ms(d->soft_pins, old->slot);
    return 0;
}

static int check_side(struct directory *d, const struct exchange *x,
                      const struct exchange_side *side, uint32_t tenant, struct old_side *old,
                      struct mcfs_error *err)
{
    if (record_at(d, old->slot)->version != side->version)
        return mcfs_fail(err, MCFS_OBJECT_NOT_FOUND, "%.*s has been replaced",
                         (int)MCFS_MIN(side->key.len, 200), side->key.data);
    struct pending_put pending;
    if (!pending_get(d->pending, side->new_version, &pending) || pending.discarded ||
        pending.tenant != tenant)
        return mcfs_fail(err, MCFS_OBJECT_NOT_FOUND, "%.*s: this put was given up",
                         (int)MCFS_MIN(side->key.len, 200), side->key.data);
    old->started_ms = pending.start_wall_ms;
    return pending.client == x->client
               ? 0
               : mcfs_fail(err, MCFS_ILLEGAL_CLIENT, "this put was started by another client");
}

static bool is_done(struct directory *d, const struct exchange *x, const struct old_side *old)
{
    return record_at(d, old[0].slot)->version == x->side[0].new_version &&
           record_at(d, old[1].slot)->version == x->side[1].new_version;
}

/* Prepares what each one gets of the other beside the content; -1 and nothing has happened. */
static int begin_moves(struct directory *d, const struct exchange *x, struct old_side *old,
                       struct mcfs_error *err)
{
    for (unsigned i = 0; i < 2; i++) {
        const struct record *other = record_at(d, old[!i].slot);
        if (memory_move_begin(d, key_hash(x->tenant, x->side[i].key), record_group(d, other), other,
                              x->client, &old[i].next, err) == 0)
            continue;
        if (i == 1 && old[0].next.block)
            record_free_group(d, old[0].next.block);
        return -1;
    }
    return 0;
}

/* Gives a record the content of the other. */
static int give_content(struct directory *d, const struct exchange *x, unsigned i,
                        const struct old_side *mine, const struct old_side *other)
{
    struct record *r = record_at(d, mine->slot);
    struct put_end content = other->content;
    content.tenant = x->tenant;
    content.key = x->side[i].key;
    content.version = x->side[i].new_version;
    if (object_publish(d, r, &content, mine->started_ms, mine->next.block))
        return -1;
    r->flags = (uint16_t)((r->flags & ~RECORD_HARD_PIN) | other->pin);
    /* Without memory it goes unpinned. */
    record_set_soft_pin(d, mine->slot, other->soft_pin_ms);
    return 0;
}

/* Both objects are there and may change. */
static int swap(struct directory *d, const struct exchange *x, struct old_side *old,
                struct mcfs_error *err)
{
    /* Both are recalled at once, rather than one after the other. */
    int wait = change_must_wait(d, old[0].slot, x->client, err);
    if (change_must_wait(d, old[1].slot, x->client, err) || wait)
        return -1;
    if (begin_moves(d, x, old, err))
        return -1;
    for (unsigned i = 0; i < 2; i++)
        record_discard_elsewhere(d, record_at(d, old[i].slot), x->client);
    for (unsigned i = 0; i < 2; i++)
        memory_move_detach(d, &old[i].next, record_at(d, old[!i].slot));
    /* Nothing here needs memory: the attributes are known already, the blocks are made. */
    if (give_content(d, x, 0, &old[0], &old[1]) || give_content(d, x, 1, &old[1], &old[0]))
        abort();
    for (unsigned i = 0; i < 2; i++)
        memory_move_attach(d, &old[i].next, record_at(d, old[i].slot));
    return 0;
}

/* Both shards' locks are held. */
static int exchange_locked(struct directory *d, const struct exchange *x, uint32_t *lease_ms,
                           struct mcfs_error *err)
{
    struct old_side old[2];
    uint32_t tenant = intern_find(d->tenants, x->tenant);
    if (find_side(d, x, &x->side[0], tenant, &old[0], err) ||
        find_side(d, x, &x->side[1], tenant, &old[1], err))
        return -1;
    if (!is_done(d, x, old) &&
        (check_side(d, x, &x->side[0], tenant, &old[0], err) ||
         check_side(d, x, &x->side[1], tenant, &old[1], err) || swap(d, x, old, err)))
        return -1;
    for (unsigned i = 0; i < 2; i++) {
        struct pending_put put;
        if (pending_get(d->pending, x->side[i].new_version, &put))
            object_forget_put(d, &put);
        lease_forget(d->leases, old[i].slot);
        *lease_ms = lease_grant_now(d, old[i].slot, x->client);
    }
    return 0;
}

int directory_exchange(struct directory *d, const struct exchange *x, uint32_t *lease_ms,
                       struct mcfs_error *err)
{
    const struct exchange_side *a = &x->side[0], *b = &x->side[1];
    if (check_key(x->tenant, a->key, err) || check_key(x->tenant, b->key, err))
        return -1;
    if (mcfs_slice_eq(a->key, b->key))
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "an object cannot be exchanged with itself");
    uint32_t one = key_hash(x->tenant, a->key).shard, two = key_hash(x->tenant, b->key).shard;
    uint32_t low = MCFS_MIN(one, two), high = MCFS_MAX(one, two);
    pthread_mutex_lock(&d->shards[low].lock);
    if (high != low)
        pthread_mutex_lock(&d->shards[high].lock);
    int rc = exchange_locked(d, x, lease_ms, err);
    if (high != low)
        pthread_mutex_unlock(&d->shards[high].lock);
    pthread_mutex_unlock(&d->shards[low].lock);
    return rc;
}
