/* SPDX-License-Identifier: Apache-2.0 */
/* How much room there can be in time, whatever eviction and the ends of leases bring. */
#include "master/evict.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "master/object_memory.h"

/* Whether its memory replicas are certain to be there for so long.  What else may hold it (its
 * group, leases to come) is not asked: the room may be less than it seems, never more. */
static bool stays(struct directory *d, const struct record *r, uint64_t ms, bool soft_pinned)
{
    uint32_t slot = (uint32_t)(r - d->record_base);
    return r->flags & RECORD_HARD_PIN || object_lease_left_ms(d, r) > ms ||
           (!soft_pinned && r->flags & RECORD_SOFT_PIN &&
            soft_pin_left_ms(d->soft_pins, slot) > ms);
}

static void add_shard(struct directory *d, uint32_t shard, uint64_t ms, bool soft_pinned,
                      uint64_t *bytes, uint32_t max)
{
    MCFS_LOCK_SCOPE(&d->shards[shard].lock);
    for (uint32_t i = 0; i <= d->shards[shard].mask; i++) {
        uint32_t slot = shard_slot_at(d, shard, i);
        const struct record *r = slot ? record_at(d, slot) : NULL;
        record_walk_prefetch(d, shard, i);
        if (!r || !r->side || !record_has_memory(d, r) || !stays(d, r, ms, soft_pinned))
            continue;
        const struct side *side = record_side(d, r);
        for (uint32_t k = 0; k < side->count; k++)
            if (side->replicas[k].type == MCFS_REPLICA_MEMORY && side->replicas[k].segment <= max)
                bytes[side->replicas[k].segment] += side->replicas[k].size;
    }
}

uint64_t directory_room_within(struct directory *d, uint64_t ms, bool soft_pinned)
{
    uint32_t max = segments_max(d->segments);
    uint64_t room = 0;
    bool usable = false;
    _cleanup_free_ uint64_t *bytes = calloc((size_t)max + 1, sizeof(*bytes));
    if (!bytes)
        return UINT64_MAX;
    for (uint32_t shard = 0; shard < MCFS_SHARD_COUNT; shard++) {
        unsigned slot = directory_enter(d);
        add_shard(d, shard, ms, soft_pinned, bytes, max);
        directory_leave(d, slot);
    }
    segments_add_held(d->segments, mcfs_mono_ms() + (int64_t)ms, bytes, max);
    for (uint32_t n = 1; n <= max; n++) {
        struct segment_info g;
        if (!segments_get(d->segments, n, 0, &g) || g.state != SEGMENT_OK)
            continue;
        usable = true;
        room = MCFS_MAX(room, g.size - MCFS_MIN(g.size, bytes[n]));
    }
    return usable ? room : UINT64_MAX;
}
