/* SPDX-License-Identifier: Apache-2.0 */
/* The directory as a snapshot's image, and back. */
#include "master/record.h"

#include "common/cleanup.h"
#include "common/log.h"
#include "master/object_memory.h"
#include "master/segments_image.h"

/* ---- out: in the checkpoint's child, where nothing moves ---- */

static int compare_slots(const void *a, const void *b, void *arg)
{
    const struct directory *d = arg;
    const struct record *x = record_at(d, *(const uint32_t *)a);
    const struct record *y = record_at(d, *(const uint32_t *)b);
    int c = 0;
    if (x->tenant != y->tenant)
        c = mcfs_slice_cmp(intern_get(d->tenants, x->tenant), intern_get(d->tenants, y->tenant));
    return c ? c : mcfs_slice_cmp(record_key(d, x), record_key(d, y));
}

static struct snap_replica local_replica(struct directory *d, uint64_t id, uint32_t node,
                                         uint64_t size)
{
    return (struct snap_replica){.id = id,
                                 .status = MCFS_REPLICA_COMPLETE,
                                 .type = MCFS_REPLICA_LOCAL_DISK,
                                 .client = directory_client_id(d, node),
                                 .endpoint = d->config.endpoint(d->config.arg, node),
                                 .size = size};
}

/* payloads: of the memory replicas, one behind the other. */
static uint32_t fill_replicas(struct directory *d, const struct record *r, struct snap_replica *out,
                              uint32_t max, struct mcfs_buf *payloads)
{
    const struct side *side = record_side(d, r);
    uint32_t n = 0;
    size_t at = 0;
    mcfs_buf_reset(payloads);
    if (r->flags & RECORD_INLINE)
        out[n++] = local_replica(d, r->version, r->node, r->size);
    for (uint32_t i = 0; side && i < side->count && n < max; i++) {
        const struct side_replica *s = &side->replicas[i];
        if (s->status == MCFS_REPLICA_REMOVED)
            continue;
        if (s->type == MCFS_REPLICA_LOCAL_DISK) {
            out[n++] = local_replica(d, s->id, s->node, s->size);
            continue;
        }
        struct snap_replica *o = &out[n++];
        *o = (struct snap_replica){
            .id = s->id, .status = s->status, .type = s->type, .size = s->size};
        if (s->type == MCFS_REPLICA_MEMORY) {
            struct segment_range range = side_range(s);
            size_t before = payloads->len;
            encode_memory_replica(d, &range, payloads);
            o->payload.len = payloads->len - before;
        } else {
            o->payload = mcfs_slice((const char *)side + s->payload_off, s->payload_len);
        }
    }
    for (uint32_t i = 0; i < n && !payloads->failed;
         i++) /* which stay where they are from here on */
        if (out[i].type == MCFS_REPLICA_MEMORY) {
            out[i].payload.data = (const char *)payloads->data + at;
            at += out[i].payload.len;
        }
    return n;
}

int directory_visit_shard(struct directory *d, uint32_t shard,
                          int (*fn)(const struct snap_object *object, void *arg,
                                    struct mcfs_error *err),
                          void *arg, struct mcfs_error *err)
{
    struct shard *s = &d->shards[shard];
    _cleanup_free_ uint32_t *slots = malloc((s->count + 1) * sizeof(*slots));
    struct snap_replica replicas[256];
    _cleanup_buf_ struct mcfs_buf payloads = MCFS_BUF_INIT;
    uint32_t n = 0;
    if (!slots)
        return mcfs_fail_errno(err, ENOMEM, "shard %u", shard);
    for (uint32_t i = 0; i <= s->mask; i++) {
        uint32_t slot = shard_slot_at(d, shard, i);
        if (slot)
            slots[n++] = slot;
    }
    qsort_r(slots, n, sizeof(*slots), compare_slots, d);
    for (uint32_t i = 0; i < n; i++) {
        const struct record *r = record_at(d, slots[i]);
        const struct side *side = record_side(d, r);
        struct snap_object o = {
            .tenant = intern_get(d->tenants, r->tenant),
            .key = record_key(d, r),
            .put_client = directory_client_id(d, r->putter),
            .put_start_ms = (int64_t)r->put_start_ms,
            .size = r->size,
            .lease_ms = lease_deadline_wall_ms(d->leases, slots[i]),
            .data_type = r->data_type,
            .hard_pin = r->flags & RECORD_HARD_PIN,
            .has_extra = true,
            .version = r->version,
            .attr = record_attr(d, r),
            .replicas = replicas,
            .replica_count = fill_replicas(d, r, replicas, MCFS_ARRAY_SIZE(replicas), &payloads)};
        if (payloads.failed)
            return mcfs_fail_errno(err, ENOMEM, "shard %u", shard);
        if (side) {
            o.has_checksum = side->has_checksum;
            o.checksum = side->checksum;
            o.group = mcfs_slice((const char *)side + side->group_off, side->group_len);
            o.lease_ms = MCFS_MAX(o.lease_ms, side->lease_ms);
        }
        if (fn(&o, arg, err))
            return -1;
    }
    return 0;
}

uint64_t directory_shard_objects(struct directory *d, uint32_t shard)
{
    return d->shards[shard].count;
}

/* ---- in ---- */

/* Whether the object is the common case, which needs no side record. */
static bool is_plain(const struct snap_object *o)
{
    return o->replica_count == 1 && o->replicas[0].type == MCFS_REPLICA_LOCAL_DISK &&
           o->replicas[0].id == o->version && o->replicas[0].size == o->size && !o->has_checksum &&
           o->group.len == 0;
}

static uint32_t restored_client(struct directory *d, struct mcfs_id id)
{
    return id.hi || id.lo ? directory_client(d, id) : 0;
}

/* Whether the replica's payload is kept as it is. */
static bool is_foreign(const struct snap_replica *r)
{
    return r->type != MCFS_REPLICA_LOCAL_DISK && r->type != MCFS_REPLICA_MEMORY;
}

/* Builds the side record of everything that does not fit the record.  ranges: of the memory
 * replicas, each at its replica's place. */
static int restore_side(struct directory *d, uint32_t shard, struct record *r,
                        const struct snap_object *o, const struct segment_range *ranges)
{
    uint64_t bytes = sizeof(struct side) + o->replica_count * sizeof(struct side_replica);
    uint32_t at = (uint32_t)bytes;
    for (uint32_t i = 0; i < o->replica_count; i++)
        if (is_foreign(&o->replicas[i]))
            bytes += o->replicas[i].payload.len;
    bytes += o->group.len;
    if (bytes > 12000) /* an arena's slab */
        return -1;
    uint32_t block = arena_alloc(d->keys, shard % ARENA_STRIPES, (uint32_t)bytes);
    if (!block)
        return -1;
    struct side *side = (struct side *)(void *)(d->key_base + (uint64_t)block * KEY_UNIT);
    *side = (struct side){.bytes = (uint32_t)bytes,
                          .count = o->replica_count,
                          .checksum = o->checksum,
                          .has_checksum = o->has_checksum,
                          .lease_ms = o->lease_ms,
                          .group_len = (uint16_t)o->group.len,
                          .group_off = at};
    if (o->group.len)
        memcpy((char *)side + at, o->group.data, o->group.len);
    at += (uint32_t)o->group.len;
    for (uint32_t i = 0; i < o->replica_count; i++) {
        const struct snap_replica *from = &o->replicas[i];
        bool local = from->type == MCFS_REPLICA_LOCAL_DISK;
        side->replicas[i] =
            (struct side_replica){.id = from->id,
                                  .size = from->size,
                                  .node = local ? restored_client(d, from->client) : 0,
                                  .type = from->type,
                                  .status = (int8_t)from->status,
                                  .unconfirmed = 1};
        if (local) {
            atomic_fetch_add(&d->node_objects[side->replicas[i].node & 0xffff], 1);
            continue;
        }
        if (!is_foreign(from)) {
            if (!ranges) /* not so: who passes a memory replica passes its range */
                continue;
            side->replicas[i].size = ranges[i].size;
            side->replicas[i].node = ranges[i].node;
            side->replicas[i].address = ranges[i].address;
            side->replicas[i].segment = (uint16_t)ranges[i].segment;
            continue;
        }
        side->replicas[i].payload_off = at;
        side->replicas[i].payload_len = (uint32_t)from->payload.len;
        memcpy((char *)side + at, from->payload.data, from->payload.len);
        at += (uint32_t)from->payload.len;
    }
    r->side = block;
    return 0;
}

static bool has_complete_replica(const struct snap_object *o, uint64_t *newest_id)
{
    bool complete = false;
    for (uint32_t i = 0; i < o->replica_count; i++) {
        complete |= o->replicas[i].status == MCFS_REPLICA_COMPLETE;
        if (o->replicas[i].id > *newest_id)
            *newest_id = o->replicas[i].id;
    }
    return complete;
}

/* What is left of an object's replicas once the memory replicas have claimed their ranges. */
struct kept {
    struct snap_replica *replicas;
    struct segment_range *ranges; /* of the memory replicas among them */
    uint32_t count;
};

static void free_kept(struct kept *k)
{
    free(k->replicas);
    free(k->ranges);
}

static int claim_memory(struct directory *d, const struct snap_object *o, struct kept *k,
                        struct mcfs_error *err)
{
    k->replicas = calloc(o->replica_count + 1, sizeof(*k->replicas));
    k->ranges = calloc(o->replica_count + 1, sizeof(*k->ranges));
    if (!k->replicas || !k->ranges)
        return mcfs_fail_errno(err, ENOMEM, "restore");
    for (uint32_t i = 0; i < o->replica_count; i++) {
        const struct snap_replica *r = &o->replicas[i];
        if (r->type == MCFS_REPLICA_MEMORY && !restore_memory_replica(d, r, &k->ranges[k->count]))
            continue;
        k->replicas[k->count++] = *r;
    }
    return 0;
}

/* The object is not kept: where a put was under way, its writer may still be busy. */
static void let_go(struct directory *d, const struct kept *k)
{
    for (uint32_t i = 0; i < k->count; i++)
        if (k->replicas[i].type == MCFS_REPLICA_MEMORY)
            segments_release_in(d->segments, &k->ranges[i], d->config.put_release_ms);
}

static bool names_memory(const struct snap_object *o)
{
    for (uint32_t i = 0; i < o->replica_count; i++)
        if (o->replicas[i].type == MCFS_REPLICA_MEMORY)
            return true;
    return false;
}

static int restore_kept(struct directory *d, struct snap_object *o, uint64_t newest_id,
                        struct kept *k, struct mcfs_error *err);

int directory_restore(struct directory *d, const struct snap_object *in, struct mcfs_error *err)
{
    struct snap_object o = *in;
    _cleanup_(free_kept) struct kept k = {0};
    uint64_t newest_id = 0;
    bool memory = names_memory(&o);
    if (!has_complete_replica(&o, &newest_id)) {
        if (memory && claim_memory(d, &o, &k, err))
            return -1;
        let_go(d, &k);
        return RESTORE_INCOMPLETE;
    }
    return restore_kept(d, &o, newest_id, memory ? &k : NULL, err);
}

/* k: NULL when there are no memory replicas. */
static int restore_kept(struct directory *d, struct snap_object *object, uint64_t newest_id,
                        struct kept *k, struct mcfs_error *err)
{
    struct snap_object o = *object;
    if (check_key(o.tenant, o.key, err))
        return -1;
    if (o.size >> 48 || o.group.len > UINT16_MAX || (uint64_t)o.put_start_ms >> 48)
        return mcfs_fail(err, MCFS_FILE_READ_FAIL, "an object with impossible figures");
    if (!o.version)
        o.version = newest_id;
    uint32_t tenant = intern_put(d->tenants, o.tenant);
    if (!tenant)
        return mcfs_fail(err, MCFS_NO_AVAILABLE_HANDLE, "too many tenants");
    struct key_hash h = key_hash(o.tenant, o.key);
    if (!o.has_extra)
        o.attr.mtime_ns = o.put_start_ms * 1000000;
    MCFS_LOCK_SCOPE(&d->shards[h.shard].lock);
    if (shard_find(d, h, tenant, o.key))
        return RESTORE_TWICE; /* twice in one snapshot: the first counts */
    if (k) {
        uint64_t unused = 0;
        if (claim_memory(d, &o, k, err))
            return -1;
        o.replicas = k->replicas;
        o.replica_count = k->count;
        if (!has_complete_replica(&o, &unused)) {
            let_go(d, k);
            return RESTORE_LOST_MEMORY;
        }
    }
    uint32_t slot = record_insert(d, h, tenant, o.key, o.size, o.attr.mtime_ns);
    struct record *r = slot ? record_at(d, slot) : NULL;
    if (!r || record_set_attr(d, r, &o.attr))
        return mcfs_fail(err, MCFS_NO_AVAILABLE_HANDLE, "the directory's memory limit is reached");
    r->version = o.version;
    r->put_start_ms = (uint64_t)o.put_start_ms;
    r->putter = restored_client(d, o.put_client);
    r->data_type = o.data_type;
    r->flags = RECORD_ADOPTED | (o.hard_pin ? RECORD_HARD_PIN : 0);
    if (is_plain(&o) && restored_client(d, o.replicas[0].client) < 65536) {
        record_set_inline(d, r, restored_client(d, o.replicas[0].client), 0);
        r->flags |= RECORD_UNCONFIRMED;
    } else if (restore_side(d, h.shard, r, &o, k ? k->ranges : NULL)) {
        record_delete(d, h, slot);
        return mcfs_fail(err, MCFS_NO_AVAILABLE_HANDLE, "%.*s: too many replicas to keep",
                         (int)MCFS_MIN(o.key.len, 160), o.key.data);
    }
    if (record_show(d, slot)) {
        record_delete(d, h, slot);
        return mcfs_fail(err, MCFS_NO_AVAILABLE_HANDLE, "the master is out of memory");
    }
    atomic_fetch_add_explicit(&d->restored_replicas, o.replica_count, memory_order_relaxed);
    directory_raise_next_id(d, MCFS_MAX(o.version, newest_id) + 1);
    return RESTORE_KEPT;
}
