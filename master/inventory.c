/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a node reports to store, held against the directory.  The newest version of a key wins: a
 * node stores a version that the master does not know only when the master has forgotten it (a
 * restart without a snapshot, or with an older one), or when the node was stopped between storing
 * and PutEnd, and then keeping the whole new object is as right as keeping the old one.
 */
#include "master/record.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "master/object_change.h"
#include "master/object_memory.h"

uint8_t directory_inventory_begin(struct directory *d, uint32_t node)
{
    return (uint8_t)(atomic_fetch_add(&d->node_generation[node], 1) + 1);
}

void directory_inventory_ahead(struct directory *d, const struct mcfs_object *objects, uint32_t n)
{
    struct key_hash h[DIRECTORY_AHEAD_MAX];
    struct mcfs_slice keys[DIRECTORY_AHEAD_MAX];
    for (uint32_t i = 0; i < n; i++) {
        keys[i] = objects[i].key;
        h[i] = key_hash(objects[i].tenant, objects[i].key);
    }
    record_fetch_ahead(d, h, keys, n);
}

static int adopt(struct directory *d, struct key_hash h, uint32_t tenant, uint32_t slot,
                 uint32_t node, uint8_t generation, const struct mcfs_object *o,
                 struct mcfs_error *err)
{
    struct record *r;
    bool is_new = !slot;
    if (slot) {
        r = record_at(d, slot);
        /* Holders of the older version hear of it; it is gone already. */
        if (lease_held_by_others(d->leases, slot, node))
            change_must_wait(d, slot, node, NULL);
        if (record_discard_elsewhere(d, r, node))
            d->config.discard(d->config.arg, node, o->tenant, o->key, r->version);
    } else {
        slot = record_insert(d, h, tenant, o->key, o->size, o->attr.mtime_ns);
        if (!slot)
            return mcfs_fail(err, MCFS_NO_AVAILABLE_HANDLE,
                             "the master's directory is full (memory limit)");
        r = record_at(d, slot);
    }
    if (record_set_attr(d, r, &o->attr))
        return mcfs_fail(err, MCFS_NO_AVAILABLE_HANDLE, "the master is out of memory");
    if (!is_new) /* listings see it */
        tree_lock(d->tree);
    record_set_size(d, r, o->size);
    r->version = o->version;
    r->data_type = o->data_type;
    r->putter = node;
    r->put_start_ms = (uint64_t)(o->attr.mtime_ns > 0 ? o->attr.mtime_ns / 1000000 : 0);
    if (!is_new)
        tree_unlock(d->tree);
    record_set_inline(d, r, node, generation);
    r->flags |= RECORD_ADOPTED;
    if (is_new && record_show(d, slot)) {
        record_delete(d, h, slot);
        return mcfs_fail(err, MCFS_NO_AVAILABLE_HANDLE, "the master is out of memory");
    }
    directory_raise_next_id(d, o->version + 1);
    return 1;
}

int directory_inventory_item(struct directory *d, uint32_t node, uint8_t generation,
                             const struct mcfs_object *o, struct mcfs_error *err)
{
    if (check_key(o->tenant, o->key, err))
        return -1;
    if (o->size >> 48)
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "an object has less than 2^48 bytes");
    uint32_t tenant = intern_put(d->tenants, o->tenant);
    if (!tenant)
        return mcfs_fail(err, MCFS_NO_AVAILABLE_HANDLE, "too many tenants");
    struct key_hash h = key_hash(o->tenant, o->key);
    MCFS_LOCK_SCOPE(&d->shards[h.shard].lock);
    uint32_t slot = shard_find(d, h, tenant, o->key);
    struct record *r = slot ? record_at(d, slot) : NULL;
    if (r && r->version > o->version)
        return 0;
    if (!r || r->version < o->version)
        return adopt(d, h, tenant, slot, node, generation, o, err);
    if (r->size != o->size)
        return 0;
    if (record_confirm_replica(d, h.shard, r, node, generation))
        return mcfs_fail(err, MCFS_NO_AVAILABLE_HANDLE, "the master is out of memory");
    return 1;
}

void directory_inventory_end(struct directory *d, uint32_t node, uint8_t generation,
                             uint64_t *dropped)
{
    *dropped = 0;
    for (uint32_t shard = 0; shard < MCFS_SHARD_COUNT; shard++) {
        MCFS_LOCK_SCOPE(&d->shards[shard].lock);
        for (uint32_t i = 0; i <= d->shards[shard].mask;) {
            record_walk_prefetch(d, shard, i);
            uint32_t slot = shard_slot_at(d, shard, i);
            struct record *r = slot ? record_at(d, slot) : NULL;
            if (!r || !record_has_node(d, r, node) || record_withdraw(d, r, node, generation)) {
                i++;
                continue;
            }
            record_delete(d, key_hash(intern_get(d->tenants, r->tenant), record_key(d, r)), slot);
            ++*dropped; /* and look at this place again: another may have moved up */
        }
    }
}

uint8_t directory_inventory_generation(struct directory *d, uint32_t node)
{
    return atomic_load(&d->node_generation[node]);
}
