/* SPDX-License-Identifier: Apache-2.0 */
#include "master/object_memory.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/table.h"
#include "master/object_change.h"
#include "master/pending.h"

#include <inttypes.h>

/* ---- puts ---- */

struct put_space {
    uint64_t version;
    int64_t started_mono_ms;
    uint32_t count;
    struct memory_replica replicas[SEGMENT_REPLICAS_MAX];
};

struct put_spaces {
    pthread_mutex_t lock;
    struct mcfs_table table;
};

static uint64_t hash_version(uint64_t version)
{
    return version * 0x9e3779b97f4a7c15ULL >> 16;
}

static uint64_t space_hash(const void *e)
{
    return hash_version(((const struct put_space *)e)->version);
}

static bool space_eq(const void *e, const void *key)
{
    return ((const struct put_space *)e)->version == *(const uint64_t *)key;
}

static struct put_space *find(struct put_spaces *t, uint64_t version)
{
    return mcfs_table_find(&t->table, hash_version(version), space_eq, &version);
}

struct put_spaces *put_spaces_new(void)
{
    struct put_spaces *t = calloc(1, sizeof(*t));
    if (t) {
        pthread_mutex_init(&t->lock, NULL);
        t->table = (struct mcfs_table)MCFS_TABLE_INIT(space_hash);
    }
    return t;
}

void put_spaces_clear(struct put_spaces *t)
{
    MCFS_LOCK_SCOPE(&t->lock);
    struct put_space *e;
    for (size_t i = 0; (e = mcfs_table_next(&t->table, &i));)
        free(e);
    mcfs_table_free(&t->table);
    t->table = (struct mcfs_table)MCFS_TABLE_INIT(space_hash);
}

void put_spaces_free(struct put_spaces *t)
{
    if (!t)
        return;
    put_spaces_clear(t);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

static struct put_space *take(struct put_spaces *t, uint64_t version)
{
    MCFS_LOCK_SCOPE(&t->lock);
    struct put_space *e = find(t, version);
    if (e)
        mcfs_table_del(&t->table, e);
    return e;
}

void put_space_forget(struct directory *d, uint64_t version)
{
    _cleanup_free_ struct put_space *e = take(d->put_spaces, version);
    for (uint32_t i = 0; e && i < e->count; i++)
        segments_release(d->segments, &e->replicas[i].range);
}

/* The ranges of a put that has just begun. */
static int allocate(struct directory *d, const struct memory_put *m, uint64_t size,
                    struct put_space *e, bool *full, struct mcfs_error *err)
{
    struct segment_range ranges[SEGMENT_REPLICAS_MAX];
    struct space_request q = {.size = size,
                              .replicas = m->replica_num,
                              .strategy = m->strategy,
                              .preferred = m->preferred,
                              .preferred_count = m->preferred_count,
                              .again = m->again};
    e->count = segments_allocate(d->segments, &q, ranges, full, err);
    for (uint32_t i = 0; i < e->count; i++)
        e->replicas[i] = (struct memory_replica){ranges[i], atomic_fetch_add(&d->next_id, 1)};
    return e->count ? 0 : -1;
}

/* From here on the put has its ranges, unless their segments have gone meanwhile: then another may
 * have been mounted there that knows nothing of them. */
static int remember(struct directory *d, struct put_space *e, struct mcfs_error *err)
{
    MCFS_LOCK_SCOPE(&d->put_spaces->lock);
    uint32_t kept = 0;
    bool connected;
    for (uint32_t i = 0; i < e->count; i++)
        if (segments_live(d->segments, e->replicas[i].range.segment, &connected))
            e->replicas[kept++] = e->replicas[i];
        else
            segments_release(d->segments, &e->replicas[i].range);
    e->count = kept;
    if (!kept)
        return mcfs_fail(err, MCFS_NO_AVAILABLE_HANDLE,
                         "the segments that there was room in have gone");
    if (mcfs_table_add(&d->put_spaces->table, e))
        return mcfs_fail(err, MCFS_NO_AVAILABLE_HANDLE, "the master is out of memory");
    return 0;
}

int directory_put_start_memory(struct directory *d, const struct put_start *p, struct memory_put *m,
                               uint64_t *version, struct mcfs_error *err)
{
    m->full = false;
    if (m->replica_num == 0 || m->replica_num > SEGMENT_REPLICAS_MAX)
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "replica_num is 1 to %d, not %" PRIu64,
                         SEGMENT_REPLICAS_MAX, (uint64_t)m->replica_num);
    struct put_start start = *p;
    start.in_memory = true;
    struct put_space *e = calloc(1, sizeof(*e));
    if (!e)
        return mcfs_fail(err, MCFS_NO_AVAILABLE_HANDLE, "the master is out of memory");
    if (directory_put_start(d, &start, version, err)) {
        free(e);
        return -1;
    }
    e->version = *version;
    e->started_mono_ms = mcfs_mono_ms();
    int rc = allocate(d, m, p->size, e, &m->full, err);
    m->count = 0;
    if (rc == 0 && (rc = remember(d, e, err)) == 0) {
        m->count = e->count;
        memcpy(m->replicas, e->replicas, e->count * sizeof(*e->replicas));
        return 0;
    }
    for (uint32_t i = 0; i < e->count; i++)
        segments_release(d->segments, &e->replicas[i].range);
    free(e);
    directory_put_revoke(d, *version, p->client, NULL);
    return -1;
}

int put_space_check(struct directory *d, const struct put_end *p, uint64_t size,
                    struct mcfs_error *err)
{
    struct mcfs_slice key = mcfs_slice(p->key.data, MCFS_MIN(p->key.len, 160));
    if (p->size != size)
        return mcfs_fail(err, MCFS_INVALID_PARAMS,
                         "%.*s: this put is one of %" PRIu64 " bytes, not of %" PRIu64,
                         MCFS_SLICE_ARG(key), size, p->size);
    if (p->from_version)
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "%.*s: a put into memory renames nothing",
                         MCFS_SLICE_ARG(key));
    MCFS_LOCK_SCOPE(&d->put_spaces->lock);
    const struct put_space *e = find(d->put_spaces, p->version);
    if (!e)
        return mcfs_fail(err, MCFS_OBJECT_NOT_FOUND, "%.*s: this put was given up",
                         MCFS_SLICE_ARG(key));
    bool connected;
    for (uint32_t i = 0; i < e->count; i++)
        if (segments_live(d->segments, e->replicas[i].range.segment, &connected))
            return 0;
    return mcfs_fail(err, MCFS_SEGMENT_NOT_FOUND,
                     "%.*s: the segments that this put had room in are gone", MCFS_SLICE_ARG(key));
}

uint32_t put_space_block(struct directory *d, struct key_hash h, struct mcfs_slice group,
                         uint64_t version)
{
    struct put_space *e;
    uint32_t head = (uint32_t)sizeof(struct side), count = 0, block;
    /* Whoever else would take it out (a revocation, the release time) finds it gone or comes first:
     * so it is taken before it is read. */
    if (!(e = take(d->put_spaces, version)))
        return 0;
    uint32_t bytes = (uint32_t)(head + e->count * sizeof(struct side_replica) + group.len);
    if (!(block = arena_alloc(d->keys, h.shard % ARENA_STRIPES, bytes))) {
        MCFS_LOCK_SCOPE(&d->put_spaces->lock);
        if (mcfs_table_add(&d->put_spaces->table, e) == 0)
            e = NULL;
    }
    struct side *side = (struct side *)(void *)(d->key_base + (uint64_t)block * KEY_UNIT);
    if (block)
        *side = (struct side){.bytes = bytes,
                              .group_len = (uint16_t)group.len,
                              .group_off = bytes - (uint32_t)group.len};
    for (uint32_t i = 0; e && i < e->count; i++) {
        const struct segment_range *r = &e->replicas[i].range;
        bool connected;
        /* Asked under the shard's lock: a segment that goes later is swept later. */
        if (!block || !segments_live(d->segments, r->segment, &connected)) {
            segments_release(d->segments, r);
            continue;
        }
        side->replicas[count++] = (struct side_replica){.id = e->replicas[i].id,
                                                        .size = r->size,
                                                        .node = r->node,
                                                        .address = r->address,
                                                        .segment = (uint16_t)r->segment,
                                                        .type = MCFS_REPLICA_MEMORY,
                                                        .status = MCFS_REPLICA_COMPLETE};
    }
    free(e);
    if (block && !count) /* the last segment has gone this very moment */
        arena_free(d->keys, block);
    if (!block || !count)
        return 0;
    side->count = count;
    if (group.len)
        memcpy((char *)side + side->group_off, group.data, group.len);
    return block;
}

void put_spaces_peek(struct directory *d,
                     void (*fn)(const struct segment_range *r, uint64_t id, int64_t started_mono_ms,
                                void *arg),
                     void *arg)
{
    const struct put_space *e;
    for (size_t i = 0; (e = mcfs_table_next(&d->put_spaces->table, &i));)
        for (uint32_t k = 0; k < e->count; k++)
            fn(&e->replicas[k].range, e->replicas[k].id, e->started_mono_ms, arg);
}

/* ---- records ---- */

uint32_t object_lease_left_ms(struct directory *d, const struct record *r)
{
    uint32_t slot = (uint32_t)(r - d->record_base), holder;
    uint32_t left = lease_held_by_others(d->leases, slot, 0);
    struct mcfs_slice group = record_group(d, r);
    if (group.len)
        left = MCFS_MAX(left, group_lease_left_ms(d->groups, r->tenant, group, &holder));
    return MCFS_MAX(left, old_lease_left_ms(d, r));
}

struct segment_range side_range(const struct side_replica *s)
{
    return (struct segment_range){s->address, s->size, s->segment, s->node};
}

void memory_replica_release(struct directory *d, const struct record *r,
                            const struct side_replica *s)
{
    struct segment_range range = side_range(s);
    segments_release_in(d->segments, &range, object_lease_left_ms(d, r));
}

bool record_has_memory(const struct directory *d, const struct record *r)
{
    const struct side *side = record_side(d, r);
    for (uint32_t i = 0; side && i < side->count; i++)
        if (side->replicas[i].type == MCFS_REPLICA_MEMORY)
            return true;
    return false;
}

/* ---- from one record to another ---- */

static struct side *side_at(const struct directory *d, uint32_t block)
{
    return (struct side *)(void *)(d->key_base + (uint64_t)block * KEY_UNIT);
}

int memory_move_begin(struct directory *d, struct key_hash h, struct mcfs_slice group,
                      const struct record *from, uint32_t client, struct memory_move *m,
                      struct mcfs_error *err)
{
    const struct side *old = record_side(d, from);
    bool memory = record_has_memory(d, from), connected;
    *m = (struct memory_move){.alone = memory && !record_has_node(d, from, client)};
    if (!memory && !group.len)
        return 0;
    if (!(m->block = record_new_side(d, h, group, memory ? old->count : 0)))
        return mcfs_fail(err, MCFS_NO_AVAILABLE_HANDLE, "the master is out of memory");
    struct side *side = side_at(d, m->block);
    if (memory) { /* the same bytes */
        side->checksum = old->checksum;
        side->has_checksum = old->has_checksum;
    }
    for (uint32_t i = 0; memory && i < old->count; i++) {
        const struct side_replica *s = &old->replicas[i];
        /* Asked under the shards' locks: a segment that goes later is swept later. */
        if (s->type == MCFS_REPLICA_MEMORY && segments_live(d->segments, s->segment, &connected))
            side->replicas[m->count++] = *s;
    }
    if (m->count || !m->alone)
        return 0;
    record_free_group(d, m->block);
    return mcfs_fail(err, MCFS_SEGMENT_NOT_FOUND, "the segments that the object was in are gone");
}

void memory_move_detach(struct directory *d, const struct memory_move *m, const struct record *from)
{
    struct side *old = record_side(d, from);
    uint32_t kept = 0, taken = 0;
    for (uint32_t i = 0; m->count && i < old->count; i++) {
        const struct side_replica *s = &old->replicas[i];
        if (taken < m->count && s->type == MCFS_REPLICA_MEMORY &&
            s->id == side_at(d, m->block)->replicas[taken].id) {
            taken++;
            continue;
        }
        old->replicas[kept++] = *s;
    }
    if (m->count)
        old->count = kept;
}

void memory_move_attach(struct directory *d, const struct memory_move *m, struct record *to)
{
    if (!m->count)
        return;
    record_side(d, to)->count = m->count;
    if (m->alone)
        record_withdraw_node(d, to, to->node);
}

void record_walk_prefetch(struct directory *d, uint32_t shard, uint32_t i)
{
    uint32_t mask = d->shards[shard].mask;
    uint32_t far = i + 16 <= mask ? shard_slot_at(d, shard, i + 16) : 0;
    uint32_t near = i + 8 <= mask ? shard_slot_at(d, shard, i + 8) : 0;
    if (far) {
        __builtin_prefetch(record_at(d, far));
        lease_prefetch(d->leases, far);
    }
    if (near && record_at(d, near)->side) {
        const struct side *side = record_side(d, record_at(d, near));
        __builtin_prefetch(side);
        __builtin_prefetch((const char *)side + 64);
    }
}

bool record_drop_memory(struct directory *d, struct record *r, bool all, uint64_t *bytes)
{
    struct side *side = record_side(d, r);
    bool left = r->flags & RECORD_INLINE, connected;
    uint32_t kept = 0;
    for (uint32_t i = 0; side && i < side->count; i++) {
        const struct side_replica *s = &side->replicas[i];
        if (s->type == MCFS_REPLICA_MEMORY &&
            (all || !segments_live(d->segments, s->segment, &connected))) {
            *bytes += s->size;
            memory_replica_release(d, r, s);
            continue;
        }
        left |= s->status == MCFS_REPLICA_COMPLETE;
        if (kept != i)
            side->replicas[kept] = *s;
        kept++;
    }
    if (side) /* group and payloads stay where they are in the block */
        side->count = kept;
    return left;
}

int directory_mount_segment(struct directory *d, const struct segment_info *info, bool *gone,
                            struct mcfs_error *err)
{
    struct put_spaces *t = d->put_spaces;
    const struct put_space *e;
    uint32_t n = 0;
    /* Held over the mount: a put whose ranges come later finds their segment gone. */
    MCFS_LOCK_SCOPE(&t->lock);
    _cleanup_free_ struct segment_busy *busy =
        calloc(t->table.count + 1, SEGMENT_REPLICAS_MAX * sizeof(*busy));
    if (!busy)
        return mcfs_fail_errno(err, ENOMEM, "segments");
    for (size_t i = 0; (e = mcfs_table_next(&t->table, &i));)
        for (uint32_t k = 0; k < e->count; k++)
            busy[n++] = (struct segment_busy){
                e->replicas[k].range,
                e->started_mono_ms + MCFS_MAX(d->config.put_release_ms, d->config.put_discard_ms)};
    return segments_mount(d->segments, info, d->config.lease_ms, busy, n, gone, err);
}

uint64_t directory_sweep_segments(struct directory *d)
{
    uint64_t gone = 0, bytes = 0, begun = segments_sweep_begin(d->segments);
    for (uint32_t shard = 0; shard < MCFS_SHARD_COUNT; shard++) {
        MCFS_LOCK_SCOPE(&d->shards[shard].lock);
        for (uint32_t i = 0; i <= d->shards[shard].mask;) {
            uint32_t slot = shard_slot_at(d, shard, i);
            struct record *r = slot ? record_at(d, slot) : NULL;
            record_walk_prefetch(d, shard, i);
            if (!r || !r->side || !record_has_memory(d, r) ||
                record_drop_memory(d, r, false, &bytes)) {
                i++;
                continue;
            }
            /* Holders of leases are told; the bytes are gone already. */
            if (lease_held_by_others(d->leases, slot, 0))
                change_must_wait(d, slot, 0, NULL);
            record_delete(d, key_hash(intern_get(d->tenants, r->tenant), record_key(d, r)), slot);
            gone++; /* and look at this place again: another may have moved up */
        }
    }
    segments_sweep_end(d->segments, begun);
    return gone;
}
