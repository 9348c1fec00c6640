/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nodes evict what they store between their own watermarks, and ask here first: an object is
 * everybody's, and only the directory knows who has pinned or leased it.
 */
#include "master/object_change.h"

#include "common/cleanup.h"
#include "master/pending.h"

/* Whether an object may lose its replica at the node now; err says why not. */
static bool may_go(struct directory *d, uint32_t slot, uint32_t node, bool soft_too,
                   struct mcfs_error *err)
{
    const struct record *r = record_at(d, slot);
    struct mcfs_slice key = record_key(d, r);
    if (r->flags & RECORD_HARD_PIN) {
        mcfs_fail(err, MCFS_ILLEGAL_CLIENT, "%.*s is pinned", (int)MCFS_MIN(key.len, 200),
                  key.data);
        return false;
    }
    if (!soft_too && r->flags & RECORD_SOFT_PIN && soft_pin_left_ms(d->soft_pins, slot)) {
        mcfs_fail(err, MCFS_OBJECT_REPLICA_BUSY, "%.*s is softly pinned",
                  (int)MCFS_MIN(key.len, 200), key.data);
        return false;
    }
    return change_must_wait(d, slot, node, err) == 0;
}

/* The node stores a version that the directory does not lead to. */
static int not_ours(struct directory *d, struct mcfs_slice key, uint64_t version, uint32_t node,
                    struct mcfs_error *err)
{
    struct pending_put put;
    if (pending_get(d->pending, version, &put) && put.client == node)
        return mcfs_fail(err, MCFS_OBJECT_REPLICA_BUSY, "%.*s is being put",
                         (int)MCFS_MIN(key.len, 200), key.data);
    return mcfs_fail(err, MCFS_REPLICA_IS_GONE, "%.*s: nobody is told that this version is there",
                     (int)MCFS_MIN(key.len, 200), key.data);
}

int directory_evict_disk(struct directory *d, struct mcfs_slice tenant, struct mcfs_slice key,
                         uint64_t version, uint32_t node, bool soft_too, struct mcfs_error *err)
{
    if (check_key(tenant, key, err))
        return -1;
    uint32_t number = intern_find(d->tenants, tenant);
    struct key_hash h = key_hash(tenant, key);
    MCFS_LOCK_SCOPE(&d->shards[h.shard].lock);
    uint32_t slot = number ? shard_find(d, h, number, key) : 0;
    struct record *r = slot ? record_at(d, slot) : NULL;
    if (!r || r->version != version || !record_has_node(d, r, node))
        return not_ours(d, key, version, node, err);
    if (!may_go(d, slot, node, soft_too, err))
        return -1;
    atomic_fetch_add_explicit(&d->evicted_replicas, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&d->evicted_bytes, r->size, memory_order_relaxed);
    if (!record_withdraw_node(d, r, node))
        record_delete(d, h, slot);
    return 0;
}

int directory_inventory_leaving(struct directory *d, uint32_t node, uint8_t generation,
                                const struct mcfs_object *o, struct mcfs_error *err)
{
    if (check_key(o->tenant, o->key, err))
        return -1;
    uint32_t tenant = intern_find(d->tenants, o->tenant);
    struct key_hash h = key_hash(o->tenant, o->key);
    {
        MCFS_LOCK_SCOPE(&d->shards[h.shard].lock);
        uint32_t slot = tenant ? shard_find(d, h, tenant, o->key) : 0;
        if (!slot || record_at(d, slot)->version != o->version ||
            may_go(d, slot, node, false, NULL))
            return 0;
    }
    return directory_inventory_item(d, node, generation, o, err);
}
