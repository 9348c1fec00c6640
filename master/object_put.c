/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Putting an object: PutStart hands out the version, the node stores the bytes under it, PutEnd
 * makes it visible in one step.  Until then nothing in the directory has changed, so a put that
 * never ends leaves nothing behind but the bytes, which its node drops.
 */
#include "master/record.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "master/object_change.h"
#include "master/object_memory.h"
#include "master/pending.h"
#include "master/usage.h"

#include <inttypes.h>

int directory_put_start(struct directory *d, const struct put_start *p, uint64_t *version,
                        struct mcfs_error *err)
{
    if (check_key(p->tenant, p->key, err))
        return -1;
    if (p->size >> 48)
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "an object has less than 2^48 bytes");
    uint64_t soft_pin_ms =
        p->soft_pin_ms == SOFT_PIN_DEFAULT ? d->config.soft_pin_ms : p->soft_pin_ms;
    if (p->has_soft_pin && soft_pin_ms > SOFT_PIN_MAX_MS)
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "a soft pin lasts a year at most");
    if (p->has_group && p->group.len > GROUP_NAME_MAX)
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "a group's name has at most %d bytes",
                         GROUP_NAME_MAX);
    /* Asked first: names that may not write are not remembered. */
    uint64_t limit;
    if (d->config.quota && d->config.quota(d->config.arg, p->tenant, &limit, err))
        return -1;
    uint32_t tenant = intern_put(d->tenants, p->tenant);
    if (!tenant)
        return mcfs_fail(err, MCFS_NO_AVAILABLE_HANDLE, "too many tenants");
    int64_t now = mcfs_mono_ms();
    uint64_t old_size = 0;
    if (!p->upsert || d->config.quota) {
        struct key_hash h = key_hash(p->tenant, p->key);
        uint32_t slot;
        {
            MCFS_LOCK_SCOPE(&d->shards[h.shard].lock);
            slot = shard_find(d, h, tenant, p->key);
            old_size = slot ? record_at(d, slot)->size : 0;
        }
        if (!p->upsert &&
            (slot || pending_has_key(d->pending, tenant, p->key, now - d->config.put_discard_ms)))
            return mcfs_fail(err, MCFS_OBJECT_ALREADY_EXISTS, "%.*s exists already",
                             (int)MCFS_MIN(p->key.len, 200), p->key.data);
    }
    /* What the put replaces goes when it ends; should that have gone before, PutEnd looks again. */
    uint64_t reserved = p->size - MCFS_MIN(p->size, old_size);
    if (usage_reserve(d, p->tenant, tenant, reserved, err))
        return -1;
    struct pending_put *put = malloc(sizeof(*put) + p->key.len);
    if (!put) {
        usage_release(d, tenant, reserved);
        return mcfs_fail(err, MCFS_NO_AVAILABLE_HANDLE, "the master is out of memory");
    }
    *put = (struct pending_put){.version = atomic_fetch_add(&d->next_id, 1),
                                .size = p->size,
                                .reserved = reserved,
                                .start_wall_ms = mcfs_wall_ms(),
                                .start_mono_ms = now,
                                .client = p->client,
                                .tenant = tenant,
                                .key_len = (uint32_t)p->key.len,
                                .hard_pin = p->hard_pin,
                                .has_soft_pin = p->has_soft_pin,
                                .soft_pin_ms = soft_pin_ms,
                                .has_group = p->has_group,
                                .in_memory = p->in_memory,
                                .group_len = (uint8_t)(p->has_group ? p->group.len : 0)};
    if (put->group_len)
        memcpy(put->group, p->group.data, put->group_len);
    memcpy(put->key, p->key.data, p->key.len);
    *version = put->version;
    if (pending_add(d->pending, put)) {
        usage_release(d, tenant, reserved);
        free(put);
        return mcfs_fail(err, MCFS_NO_AVAILABLE_HANDLE, "the master is out of memory");
    }
    return 0;
}

void object_forget_put(struct directory *d, const struct pending_put *put)
{
    if (put->in_memory)
        put_space_forget(d, put->version);
    if (pending_drop(d->pending, put->version))
        usage_release(d, put->tenant, put->reserved);
}

int directory_put_revoke(struct directory *d, uint64_t version, uint32_t client,
                         struct mcfs_error *err)
{
    struct pending_put put;
    if (!pending_get(d->pending, version, &put))
        return 0;
    if (put.client != client)
        return mcfs_fail(err, MCFS_ILLEGAL_CLIENT, "this put was started by another client");
    object_forget_put(d, &put);
    return 0;
}

static void release_put(const struct pending_put *put, void *arg)
{
    struct directory *d = arg;
    if (put->in_memory)
        put_space_forget(d, put->version);
    usage_release(d, put->tenant, put->reserved);
}

uint32_t directory_discard_puts(struct directory *d)
{
    int64_t now = mcfs_mono_ms();
    uint32_t release_ms = MCFS_MAX(d->config.put_release_ms, d->config.put_discard_ms);
    group_lease_sweep(d->groups);
    return pending_expire(d->pending, now - d->config.put_discard_ms, now - release_ms, release_put,
                          d);
}

/* The side block of the memory replicas, the put's or those of the object that is renamed, and of
 * the group that the object belongs to: as PutStart said, else that of the one that is renamed or
 * replaced (slot 0: none).  next->block is 0 when there is neither. */
static int next_side(struct directory *d, struct key_hash h, uint32_t slot, uint32_t from_slot,
                     const struct pending_put *pending, struct memory_move *next,
                     struct mcfs_error *err)
{
    uint32_t old = from_slot ? from_slot : slot;
    struct mcfs_slice group = pending->has_group ? mcfs_slice(pending->group, pending->group_len)
                              : old              ? record_group(d, record_at(d, old))
                                                 : mcfs_slice("", 0);
    *next = (struct memory_move){0};
    if (from_slot)
        return memory_move_begin(d, h, group, record_at(d, from_slot), pending->client, next, err);
    if (pending->in_memory)
        next->block = put_space_block(d, h, group, pending->version);
    else if (group.len)
        next->block = record_new_group(d, h, group);
    return next->block || (!pending->in_memory && !group.len)
               ? 0
               : mcfs_fail(err, MCFS_NO_AVAILABLE_HANDLE,
                           "the master is out of memory, or the put is given up");
}

int object_publish(struct directory *d, struct record *r, const struct put_end *p,
                   int64_t started_ms, uint32_t group)
{
    if (record_set_attr(d, r, &p->attr)) {
        if (group)
            record_free_group(d, group);
        return -1;
    }
    record_drop_replicas(d, r);
    tree_lock(d->tree); /* listings read the record under it alone */
    record_set_size(d, r, p->size);
    r->version = p->version;
    r->data_type = p->data_type;
    r->putter = p->client;
    r->put_start_ms = (uint64_t)started_ms;
    r->flags &= RECORD_HARD_PIN | RECORD_SOFT_PIN;
    tree_unlock(d->tree);
    r->side = group;
    if (group && record_side(d, r)->count) /* in memory, then */
        return 0;
    r->side = 0;
    record_set_inline(d, r, p->client, atomic_load(&d->node_generation[p->client]));
    r->side = group;
    return 0;
}

/* As object_publish, with what PutStart said. */
static int publish(struct directory *d, struct record *r, const struct put_end *p,
                   const struct pending_put *pending, uint32_t side)
{
    if (object_publish(d, r, p, pending->start_wall_ms, side))
        return -1;
    if (pending->hard_pin)
        r->flags |= RECORD_HARD_PIN;
    return 0;
}

/* Under both shards' locks: the object to be replaced and the one to be renamed may change now, or
 * err says why not.  *from_slot gets the renamed object. */
static int check_change(struct directory *d, const struct put_end *p, uint32_t tenant,
                        uint32_t slot, uint32_t *from_slot, struct mcfs_error *err)
{
    if (slot && p->no_replace)
        return mcfs_fail(err, MCFS_OBJECT_ALREADY_EXISTS, "%.*s exists already",
                         (int)MCFS_MIN(p->key.len, 200), p->key.data);
    if (slot && change_must_wait(d, slot, p->client, err))
        return -1;
    *from_slot = 0;
    if (!p->from_version)
        return 0;
    *from_slot = shard_find(d, key_hash(p->tenant, p->from), tenant, p->from);
    if (!*from_slot || record_at(d, *from_slot)->version != p->from_version)
        return mcfs_fail(err, MCFS_OBJECT_NOT_FOUND, "%.*s: no such object (any more)",
                         (int)MCFS_MIN(p->from.len, 200), p->from.data);
    const struct record *from = record_at(d, *from_slot);
    if (record_has_memory(d, from) && from->size != p->size)
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "%.*s has %" PRIu64 " bytes, not %" PRIu64,
                         (int)MCFS_MIN(p->from.len, 160), p->from.data, (uint64_t)from->size,
                         p->size);
    return change_must_wait(d, *from_slot, p->client, err);
}

/* What has become the record's under its new name leaves the old one, which goes. */
static void take_from(struct directory *d, const struct put_end *p, struct record *r,
                      uint32_t from_slot, const struct memory_move *move)
{
    struct record *from = record_at(d, from_slot);
    memory_move_detach(d, move, from);
    memory_move_attach(d, move, r);
    r->flags |= from->flags & RECORD_HARD_PIN;
    r->data_type = from->data_type;
    record_discard_elsewhere(d, from, p->client);
    record_delete(d, key_hash(p->tenant, p->from), from_slot);
}

/* Without memory for it the object goes unpinned: the put has changed the record already. */
static void set_soft_pin(struct directory *d, uint32_t slot, uint32_t from_slot,
                         const struct pending_put *pending)
{
    uint64_t ms = from_slot ? soft_pin_left_ms(d->soft_pins, from_slot) : 0;
    if (pending->has_soft_pin)
        record_set_soft_pin(d, slot, pending->soft_pin_ms);
    else if (ms)
        record_set_soft_pin(d, slot, ms);
}

/* By its age, so that what another put has taken the place of is so at once. */
static bool is_given_up(const struct directory *d, const struct pending_put *p)
{
    return p->discarded || p->start_mono_ms < mcfs_mono_ms() - (int64_t)d->config.put_discard_ms;
}

static int put_end_locked(struct directory *d, const struct put_end *p, struct key_hash h,
                          uint32_t tenant, const struct pending_put *pending,
                          struct put_result *out, struct mcfs_error *err)
{
    uint32_t slot = shard_find(d, h, tenant, p->key), from_slot = 0;
    struct record *r = record_at(d, slot);
    bool is_new = !slot;
    if (!is_new && r->version == p->version) { /* done before, and the answer was lost */
        out->lease_ms = lease_grant_now(d, slot, p->client);
        return 0;
    }
    if (!pending || is_given_up(d, pending))
        return mcfs_fail(err, MCFS_OBJECT_NOT_FOUND, "%.*s: this put was given up",
                         (int)MCFS_MIN(p->key.len, 200), p->key.data);
    if (!is_new && r->version > p->version && !p->from_version && !p->no_replace) {
        /* A put that started later has ended first: the result is as if this one had been replaced
         * at once. */
        out->superseded = true;
        object_forget_put(d, pending);
        return 0;
    }
    if ((pending->in_memory && put_space_check(d, p, pending->size, err)) ||
        check_change(d, p, tenant, slot, &from_slot, err))
        return -1;
    /* What was not set aside at PutStart; what goes in this very step makes room for it. */
    uint64_t extra = p->size - MCFS_MIN(p->size, pending->reserved);
    uint64_t freed = (is_new ? 0 : r->size) + (from_slot ? record_at(d, from_slot)->size : 0);
    if (usage_fits(d, p->tenant, tenant, extra, freed, err))
        return -1;
    struct memory_move next;
    if (next_side(d, h, slot, from_slot, pending, &next, err))
        return -1;
    if (!is_new && record_discard_elsewhere(d, r, p->client))
        out->replaced_version = r->version;
    if (is_new) {
        slot = record_insert(d, h, tenant, p->key, p->size, p->attr.mtime_ns);
        if (!slot && next.block)
            record_free_group(d, next.block);
        if (!slot)
            return mcfs_fail(err, MCFS_NO_AVAILABLE_HANDLE,
                             "the master's directory is full (memory limit)");
    }
    r = record_at(d, slot);
    if (publish(d, r, p, pending, next.block) || (is_new && record_show(d, slot))) {
        if (is_new)
            record_delete(d, h, slot);
        return mcfs_fail(err, MCFS_NO_AVAILABLE_HANDLE, "the master is out of memory");
    }
    set_soft_pin(d, slot, from_slot, pending);
    if (from_slot)
        take_from(d, p, r, from_slot, &next);
    object_forget_put(d, pending);
    lease_forget(d->leases, slot);
    out->lease_ms = lease_grant_now(d, slot, p->client);
    atomic_fetch_add_explicit(&d->puts, 1, memory_order_relaxed);
    return 0;
}

int directory_put_end(struct directory *d, const struct put_end *p, struct put_result *out,
                      struct mcfs_error *err)
{
    *out = (struct put_result){0};
    if (check_key(p->tenant, p->key, err))
        return -1;
    if (p->size >> 48)
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "an object has less than 2^48 bytes");
    struct pending_put pending;
    bool known = pending_get(d->pending, p->version, &pending);
    if (known && pending.client != p->client)
        return mcfs_fail(err, MCFS_ILLEGAL_CLIENT, "this put was started by another client");
    uint32_t tenant = intern_find(d->tenants, p->tenant);
    if (!tenant || (known && pending.tenant != tenant))
        return mcfs_fail(err, MCFS_OBJECT_NOT_FOUND, "no such put of this tenant");
    struct key_hash h = key_hash(p->tenant, p->key);
    uint32_t other = p->from_version ? key_hash(p->tenant, p->from).shard : h.shard;
    uint32_t low = MCFS_MIN(h.shard, other), high = MCFS_MAX(h.shard, other);
    out->shard = h.shard;
    pthread_mutex_lock(&d->shards[low].lock);
    if (high != low)
        pthread_mutex_lock(&d->shards[high].lock);
    usage_lock(d, tenant);
    int rc = put_end_locked(d, p, h, tenant, known ? &pending : NULL, out, err);
    usage_unlock(d, tenant);
    if (high != low)
        pthread_mutex_unlock(&d->shards[high].lock);
    pthread_mutex_unlock(&d->shards[low].lock);
    return rc;
}
