/* SPDX-License-Identifier: Apache-2.0 */
#include "master/record.h"

#include "common/clock.h"
#include "master/object_memory.h"

static uint32_t stripe(uint32_t shard)
{
    return shard % ARENA_STRIPES;
}

static bool memory_full(struct directory *d)
{
    return d->config.memory_limit_bytes &&
           arena_resident_bytes(d->records) + arena_resident_bytes(d->keys) >
               d->config.memory_limit_bytes;
}

uint32_t record_insert(struct directory *d, struct key_hash h, uint32_t tenant,
                       struct mcfs_slice key, uint64_t size, int64_t mtime_ns)
{
    if (memory_full(d))
        return 0;
    uint32_t slot = arena_alloc(d->records, stripe(h.shard), sizeof(struct record));
    if (!slot || slot > SLOT_MAX)
        return 0;
    uint32_t block = arena_alloc(d->keys, stripe(h.shard), (uint32_t)key.len);
    if (!block)
        goto no_key;
    struct record *r = record_at(d, slot);
    *r = (struct record){.key = block,
                         .key_len = (uint16_t)key.len,
                         .tenant = tenant,
                         .hash = (uint16_t)h.hash,
                         .mtime_ns = mtime_ns};
    memcpy(d->key_base + (uint64_t)block * KEY_UNIT, key.data, key.len);
    lease_forget(d->leases, slot);

    if (shard_add(d, h, slot))
        goto no_place;
    atomic_fetch_add_explicit(&d->objects, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&d->tenant_objects[tenant], 1, memory_order_relaxed);
    record_set_size(d, r, size);
    return slot;

no_place:
    arena_free(d->keys, block);
    r->key = 0;
no_key:
    arena_free(d->records, slot);
    return 0;
}

int record_show(struct directory *d, uint32_t slot)
{
    struct record *r = record_at(d, slot);
    struct mcfs_slice key = record_key(d, r);
    tree_lock(d->tree);
    uint32_t dir = tree_dir(d->tree, r->tenant, key, true);
    uint32_t place = dir ? tree_add(d->tree, dir, slot, r->mtime_ns) : UINT32_MAX;
    if (dir && place == UINT32_MAX)
        tree_prune(d->tree, dir);
    if (place != UINT32_MAX) {
        r->dir = dir;
        r->place = place;
    }
    tree_unlock(d->tree);
    return place == UINT32_MAX ? -1 : 0;
}

void record_delete(struct directory *d, struct key_hash h, uint32_t slot)
{
    struct record *r = record_at(d, slot);
    shard_del(d, h, slot);
    tree_lock(d->tree);
    if (r->dir)
        tree_del(d->tree, r->dir, r->place, mcfs_wall_ns());
    tree_unlock(d->tree);
    record_drop_replicas(d, r);
    record_set_size(d, r, 0);
    lease_forget(d->leases, slot);
    if (r->flags & RECORD_SOFT_PIN)
        soft_pin_drop(d->soft_pins, slot);
    atomic_fetch_sub_explicit(&d->objects, 1, memory_order_relaxed);
    atomic_fetch_sub_explicit(&d->tenant_objects[r->tenant], 1, memory_order_relaxed);
    arena_free(d->keys, r->key);
    r->key = 0;
    arena_free(d->records, slot);
}

void record_set_size(struct directory *d, struct record *r, uint64_t size)
{
    int64_t change = (int64_t)size - (int64_t)r->size;
    atomic_fetch_add_explicit(&d->object_bytes, (uint64_t)change, memory_order_relaxed);
    atomic_fetch_add_explicit(&d->tenant_bytes[r->tenant], (uint64_t)change, memory_order_relaxed);
    r->size = size;
}

static void count_node(struct directory *d, uint32_t node, int change)
{
    if (node < 65536)
        atomic_fetch_add_explicit(&d->node_objects[node], (uint64_t)(int64_t)change,
                                  memory_order_relaxed);
}

void record_drop_replicas(struct directory *d, struct record *r)
{
    if (r->flags & RECORD_INLINE)
        count_node(d, r->node, -1);
    r->flags &= (uint16_t) ~(RECORD_INLINE | RECORD_UNCONFIRMED);
    struct side *side = record_side(d, r);
    if (!side)
        return;
    for (uint32_t i = 0; i < side->count; i++)
        if (side->replicas[i].type == MCFS_REPLICA_LOCAL_DISK)
            count_node(d, side->replicas[i].node, -1);
        else if (side->replicas[i].type == MCFS_REPLICA_MEMORY)
            memory_replica_release(d, r, &side->replicas[i]);
    arena_free(d->keys, r->side);
    r->side = 0;
}

void record_set_inline(struct directory *d, struct record *r, uint32_t node, uint8_t generation)
{
    record_drop_replicas(d, r);
    r->flags |= RECORD_INLINE;
    r->node = (uint16_t)node;
    r->generation = generation;
    count_node(d, node, 1);
}

struct mcfs_slice record_group(const struct directory *d, const struct record *r)
{
    const struct side *side = record_side(d, r);
    return side && side->group_len
               ? mcfs_slice((const char *)side + side->group_off, side->group_len)
               : mcfs_slice("", 0);
}

uint32_t record_new_group(struct directory *d, struct key_hash h, struct mcfs_slice group)
{
    return record_new_side(d, h, group, 0);
}

uint32_t record_new_side(struct directory *d, struct key_hash h, struct mcfs_slice group,
                         uint32_t replicas)
{
    uint32_t head = (uint32_t)(sizeof(struct side) + replicas * sizeof(struct side_replica));
    uint32_t bytes = (uint32_t)(head + group.len);
    uint32_t block = arena_alloc(d->keys, stripe(h.shard), bytes);
    if (!block)
        return 0;
    struct side *side = (struct side *)(void *)(d->key_base + (uint64_t)block * KEY_UNIT);
    *side = (struct side){.bytes = bytes, .group_len = (uint16_t)group.len, .group_off = head};
    if (group.len)
        memcpy((char *)side + head, group.data, group.len);
    return block;
}

void record_free_group(struct directory *d, uint32_t block)
{
    const struct side *side =
        (const struct side *)(const void *)(d->key_base + (uint64_t)block * KEY_UNIT);
    for (uint32_t i = 0; i < side->count; i++) {
        struct segment_range range = side_range(&side->replicas[i]);
        segments_release(d->segments, &range);
    }
    arena_free(d->keys, block);
}

int record_set_soft_pin(struct directory *d, uint32_t slot, uint64_t ms)
{
    struct record *r = record_at(d, slot);
    if (ms && soft_pin_set(d->soft_pins, slot, ms))
        return -1;
    if (!ms && r->flags & RECORD_SOFT_PIN)
        soft_pin_drop(d->soft_pins, slot);
    r->flags = (uint16_t)(ms ? r->flags | RECORD_SOFT_PIN : r->flags & ~RECORD_SOFT_PIN);
    return 0;
}

/* Appends a replica to the side record, making or enlarging it. */
static int side_add(struct directory *d, uint32_t shard, struct record *r,
                    const struct side_replica *add)
{
    struct side *old = record_side(d, r);
    uint32_t bytes =
        (old ? old->bytes : (uint32_t)sizeof(struct side)) + (uint32_t)sizeof(struct side_replica);
    uint32_t block = arena_alloc(d->keys, stripe(shard), bytes);
    if (!block)
        return -1;
    struct side *side = (struct side *)(void *)(d->key_base + (uint64_t)block * KEY_UNIT);
    if (old) {
        /* Replicas first, then group and payloads, which all move by one replica. */
        size_t head = sizeof(*old) + old->count * sizeof(*add);
        memcpy(side, old, head);
        memcpy((char *)side + head + sizeof(*add), (char *)old + head, old->bytes - head);
        side->group_off += (uint32_t)sizeof(*add);
        for (uint32_t i = 0; i < side->count; i++)
            if (side->replicas[i].type != MCFS_REPLICA_MEMORY)
                side->replicas[i].payload_off += (uint32_t)sizeof(*add);
    } else {
        *side = (struct side){.group_off = bytes};
    }
    side->bytes = bytes;
    side->replicas[side->count++] = *add;
    if (old)
        arena_free(d->keys, r->side);
    r->side = block;
    return 0;
}

int record_confirm_replica(struct directory *d, uint32_t shard, struct record *r, uint32_t node,
                           uint8_t generation)
{
    if (r->flags & RECORD_INLINE && r->node == node) {
        r->generation = generation;
        r->flags &= (uint16_t)~RECORD_UNCONFIRMED;
        return 0;
    }
    struct side *side = record_side(d, r);
    for (uint32_t i = 0; side && i < side->count; i++) {
        struct side_replica *s = &side->replicas[i];
        if (s->type == MCFS_REPLICA_LOCAL_DISK && s->node == node) {
            s->generation = generation;
            s->unconfirmed = 0;
            s->status = MCFS_REPLICA_COMPLETE;
            return 0;
        }
    }
    if (!(r->flags & RECORD_INLINE) && !side) {
        record_set_inline(d, r, node, generation);
        return 0;
    }
    struct side_replica add = {.id = atomic_fetch_add(&d->next_id, 1),
                               .size = r->size,
                               .node = node,
                               .type = MCFS_REPLICA_LOCAL_DISK,
                               .status = MCFS_REPLICA_COMPLETE,
                               .generation = generation};
    if (side_add(d, shard, r, &add))
        return -1;
    count_node(d, node, 1);
    return 0;
}

bool record_withdraw(struct directory *d, struct record *r, uint32_t node, uint8_t generation)
{
    if (r->flags & RECORD_INLINE && r->node == node && r->generation != generation) {
        r->flags &= (uint16_t) ~(RECORD_INLINE | RECORD_UNCONFIRMED);
        count_node(d, node, -1);
    }
    struct side *side = record_side(d, r);
    bool left = r->flags & RECORD_INLINE;
    for (uint32_t i = 0; side && i < side->count; i++) {
        struct side_replica *s = &side->replicas[i];
        if (s->type == MCFS_REPLICA_LOCAL_DISK && s->node == node && s->generation != generation &&
            s->status != MCFS_REPLICA_REMOVED) {
            s->status = MCFS_REPLICA_REMOVED;
            s->node = 0; /* no longer counted as the node's */
            count_node(d, node, -1);
            count_node(d, 0, 1);
        }
        left |= s->status == MCFS_REPLICA_COMPLETE;
    }
    return left;
}

/* Of the node's replica; there is one at most. */
static uint8_t generation_at(struct directory *d, const struct record *r, uint32_t node)
{
    const struct side *side = record_side(d, r);
    if (r->flags & RECORD_INLINE && r->node == node)
        return r->generation;
    for (uint32_t i = 0; side && i < side->count; i++)
        if (side->replicas[i].type == MCFS_REPLICA_LOCAL_DISK && side->replicas[i].node == node)
            return side->replicas[i].generation;
    return 0;
}

bool record_withdraw_node(struct directory *d, struct record *r, uint32_t node)
{
    return record_withdraw(d, r, node, (uint8_t)(generation_at(d, r, node) + 1));
}

bool record_has_node(struct directory *d, const struct record *r, uint32_t node)
{
    if (r->flags & RECORD_INLINE && r->node == node)
        return true;
    struct side *side = record_side(d, r);
    for (uint32_t i = 0; side && i < side->count; i++)
        if (side->replicas[i].type == MCFS_REPLICA_LOCAL_DISK && side->replicas[i].node == node)
            return true;
    return false;
}

bool record_discard_elsewhere(struct directory *d, const struct record *r, uint32_t client)
{
    struct mcfs_slice tenant = intern_get(d->tenants, r->tenant), key = record_key(d, r);
    struct side *side = record_side(d, r);
    bool mine = false;
    if (r->flags & RECORD_INLINE) {
        if (r->node == client)
            mine = true;
        else
            d->config.discard(d->config.arg, r->node, tenant, key, r->version);
    }
    for (uint32_t i = 0; side && i < side->count; i++) {
        const struct side_replica *s = &side->replicas[i];
        if (s->type != MCFS_REPLICA_LOCAL_DISK || !s->node)
            continue;
        if (s->node == client)
            mine = true;
        else
            d->config.discard(d->config.arg, s->node, tenant, key, r->version);
    }
    return mine;
}

int record_set_attr(struct directory *d, struct record *r, const struct mcfs_attr *attr)
{
    uint32_t triple[3] = {attr->mode & 07777, attr->uid, attr->gid};
    uint32_t number = intern_put(d->attrs, mcfs_slice(triple, sizeof(triple)));
    if (!number)
        return -1;
    /* A listing reads these under the tree's lock alone. */
    tree_lock(d->tree);
    r->attr = number;
    r->mtime_ns = attr->mtime_ns;
    tree_unlock(d->tree);
    return 0;
}

struct mcfs_attr record_attr(const struct directory *d, const struct record *r)
{
    uint32_t triple[3] = {MCFS_ATTR_DEFAULT_MODE, 0, 0};
    struct mcfs_slice s = intern_get(d->attrs, r->attr);
    if (s.len == sizeof(triple))
        memcpy(triple, s.data, sizeof(triple));
    return (struct mcfs_attr){triple[0], triple[1], triple[2], r->mtime_ns};
}
