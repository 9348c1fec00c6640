/* SPDX-License-Identifier: Apache-2.0 */
#include "master/segments_image.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/mp.h"
#include "master/object_memory.h"

#define STATUS_OK 1
#define STATUS_DRAINING 4 /* gracefully unmounting */

/* ---- in ---- */

static uint32_t owner_of(struct directory *d, const struct snap_segments *s, struct mcfs_id id)
{
    for (uint32_t i = 0; i < s->client_count; i++)
        for (uint32_t k = 0; k < s->clients[i].count; k++)
            if (mcfs_id_eq(s->clients[i].segments[k], id))
                return directory_client(d, s->clients[i].client);
    return 0;
}

static void copy_text(char *to, uint8_t *len, struct mcfs_slice from)
{
    *len = (uint8_t)MCFS_MIN(from.len, SEGMENT_TEXT_MAX);
    if (*len)
        memcpy(to, from.data, *len);
}

/* The allocator's state with its arrays unpacked (the caller frees them); -1: of another form. */
static int unpack_state(const struct snap_allocator *a, struct mcfs_alloc_state *out,
                        struct mcfs_error *err)
{
    _cleanup_free_ struct snap_alloc_node *nodes = NULL;
    *out = (struct mcfs_alloc_state){.base = a->base,
                                     .multiplier_bits = a->multiplier_bits,
                                     .capacity = a->capacity,
                                     .allocated_size = a->allocated_size,
                                     .allocated_count = a->allocated_count,
                                     .size = a->size,
                                     .current_capacity = a->current_capacity,
                                     .max_capacity = a->max_capacity,
                                     .free_storage = a->free_storage,
                                     .used_bins_top = a->used_bins_top,
                                     .free_offset = a->free_offset};
    memcpy(out->used_bins, a->used_bins, sizeof(out->used_bins));
    memcpy(out->bin_heads, a->bin_heads, sizeof(out->bin_heads));
    if (snap_allocator_unpack(a, &nodes, &out->free_nodes, err))
        return -1;
    size_t n = a->current_capacity;
    out->nodes = calloc(n ? n : 1, sizeof(*out->nodes));
    if (!out->nodes) {
        free(out->free_nodes);
        out->free_nodes = NULL;
        return mcfs_fail_errno(err, ENOMEM, "segments");
    }
    for (size_t i = 0; i < n; i++)
        out->nodes[i] = (struct mcfs_alloc_node){
            nodes[i].data_offset,    nodes[i].data_size,      nodes[i].bin_prev, nodes[i].bin_next,
            nodes[i].neighbour_prev, nodes[i].neighbour_next, nodes[i].used};
    return 0;
}

static int restore_segment(struct directory *d, const struct snap_segments *all,
                           const struct snap_segment *g, struct mcfs_error *err)
{
    struct segment_info info = {.node = owner_of(d, all, g->id),
                                .id = g->id,
                                .base = g->base,
                                .size = g->size,
                                .state = g->status == STATUS_OK ? SEGMENT_OK : SEGMENT_DRAINING};
    struct mcfs_alloc_state state;
    struct mcfs_error bad = MCFS_ERROR_INIT;
    bool fresh;
    if (g->name.len > SEGMENT_TEXT_MAX || g->endpoint.len > SEGMENT_TEXT_MAX ||
        g->host.len > SEGMENT_TEXT_MAX)
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "a name or an endpoint is too long");
    copy_text(info.name, &info.name_len, g->name);
    copy_text(info.endpoint, &info.endpoint_len, g->endpoint);
    copy_text(info.host, &info.host_len, g->host);
    bool has_state = g->allocator && unpack_state(g->allocator, &state, &bad) == 0;
    if (g->allocator && !has_state)
        mcfs_warning("%s; its replicas are reserved one by one", bad.msg);
    int rc = segments_restore(d->segments, &info, has_state ? &state : NULL, &fresh, err);
    if (has_state) {
        free(state.nodes);
        free(state.free_nodes);
    }
    return rc;
}

/* In the order in which they were mounted, as far as the names tell. */
static int restore_all(struct directory *d, const struct snap_segments *s, struct mcfs_error *err)
{
    _cleanup_free_ bool *done = calloc(s->segment_count + 1, sizeof(*done));
    if (!done)
        return mcfs_fail_errno(err, ENOMEM, "segments");
    for (uint32_t n = 0; n <= s->name_count; n++)
        for (uint32_t i = 0; i < s->segment_count; i++) {
            struct mcfs_error bad = MCFS_ERROR_INIT;
            const struct snap_segment *g = &s->segments[i];
            if (done[i] || (n < s->name_count && !mcfs_slice_eq(g->name, s->names[n])))
                continue;
            done[i] = true;
            if (restore_segment(d, s, g, &bad))
                mcfs_error("segment %.*s of the snapshot is not kept: %s",
                           (int)MCFS_MIN(g->name.len, 100), g->name.data, bad.msg);
        }
    return 0;
}

int directory_restore_segments(struct directory *d, struct mcfs_slice content,
                               struct mcfs_error *err)
{
    if (!content.len)
        return 0;
    struct snap_segments *s = snap_segments_decode(content, err);
    if (!s)
        return -1;
    int rc = restore_all(d, s, err);
    snap_segments_free(s);
    return rc;
}

bool restore_memory_replica(struct directory *d, const struct snap_replica *replica,
                            struct segment_range *range)
{
    struct snap_memory m;
    if (!snap_memory_decode(replica->payload, &m)) {
        atomic_fetch_add(&d->lost_ranges, 1);
        return false;
    }
    if (!segments_find(d->segments, m.segment)) {
        atomic_fetch_add(&d->lost_segments, 1);
        return false;
    }
    if (segments_claim(d->segments, m.segment, m.address, m.size,
                       m.has_handle ? m.node : UINT32_MAX, range))
        return true;
    atomic_fetch_add(&d->lost_ranges, 1);
    return false;
}

static int hold_discarded(const struct snap_discarded *e, void *arg, struct mcfs_error *err)
{
    struct directory *d = arg;
    (void)err;
    for (uint32_t i = 0; i < e->replica_count; i++) {
        struct snap_memory m;
        struct segment_range range;
        if (e->replicas[i].type == MCFS_REPLICA_MEMORY &&
            snap_memory_decode(e->replicas[i].payload, &m) &&
            segments_claim(d->segments, m.segment, m.address, m.size,
                           m.has_handle ? m.node : UINT32_MAX, &range))
            segments_hold_carried(d->segments, &range, d->config.put_release_ms);
    }
    return 0;
}

int directory_restore_held(struct directory *d, struct mcfs_slice discarded, struct mcfs_error *err)
{
    if (discarded.len && snap_discarded_decode(discarded, hold_discarded, d, err))
        return -1;
    d->carried_until_mono_ms = mcfs_mono_ms() + d->config.put_release_ms;
    uint64_t found = segments_claims_end(d->segments, d->config.put_release_ms);
    if (found)
        mcfs_info(
            "%llu ranges of memory segments are no object's: held for a while, as a writer "
            "may be busy there",
            (unsigned long long)found);
    return 0;
}

/* ---- out ---- */

void encode_memory_replica(struct directory *d, const struct segment_range *range,
                           struct mcfs_buf *out)
{
    struct segment_peek g;
    struct snap_memory m = {.size = range->size,
                            .address = range->address,
                            .has_handle = true,
                            .real_base = range->address,
                            .requested_size = range->size,
                            .node = range->node};
    if (segments_peek(d->segments, range->segment, &g)) {
        m.segment = g.info->id;
        m.offset = (uint32_t)((range->address - g.state->base) >> g.state->multiplier_bits);
    } else {
        m.has_handle = false;
    }
    snap_memory_encode(&m, out);
}

struct encoding {
    struct segment_peek *v; /* in order of the ids */
    struct snap_segment *segments;
    struct snap_allocator *allocators;
    struct mcfs_buf *packed;
    struct mcfs_slice *names; /* in order of mounting */
    struct snap_client_segments *clients;
    struct mcfs_id *ids; /* by client */
    uint32_t count, name_count, client_count;
};

static void free_encoding(struct encoding *e)
{
    for (uint32_t i = 0; e->packed && i < e->count; i++)
        mcfs_buf_free(&e->packed[i]);
    free(e->v);
    free(e->segments);
    free(e->allocators);
    free(e->packed);
    free(e->names);
    free(e->clients);
    free(e->ids);
}

static int compare_ids(struct mcfs_id a, struct mcfs_id b)
{
    return a.hi != b.hi ? (a.hi > b.hi) - (a.hi < b.hi) : (a.lo > b.lo) - (a.lo < b.lo);
}

static int by_id(const void *a, const void *b)
{
    return compare_ids(((const struct segment_peek *)a)->info->id,
                       ((const struct segment_peek *)b)->info->id);
}

static int by_order(const void *a, const void *b)
{
    uint32_t x = ((const struct segment_peek *)a)->order;
    uint32_t y = ((const struct segment_peek *)b)->order;
    return (x > y) - (x < y);
}

static int by_client(const void *a, const void *b)
{
    return compare_ids(((const struct snap_client_segments *)a)->client,
                       ((const struct snap_client_segments *)b)->client);
}

/* e->v is in order of mounting. */
static void fill_names_and_clients(struct directory *d, struct encoding *e)
{
    uint32_t ids = 0;
    for (uint32_t i = 0; i < e->count; i++) {
        const struct segment_info *g = e->v[i].info;
        struct mcfs_slice name = mcfs_slice(g->name, g->name_len);
        bool seen = false, owned = g->node;
        for (uint32_t k = 0; k < e->name_count && !seen; k++)
            seen = mcfs_slice_eq(e->names[k], name);
        if (!seen)
            e->names[e->name_count++] = name;
        for (uint32_t k = 0; k < i && owned; k++)
            owned = e->v[k].info->node != g->node;
        if (!owned) /* nobody's, or its client is there already */
            continue;
        struct snap_client_segments *c = &e->clients[e->client_count++];
        *c = (struct snap_client_segments){.client = directory_client_id(d, g->node),
                                           .segments = &e->ids[ids]};
        for (uint32_t k = i; k < e->count; k++)
            if (e->v[k].info->node == g->node) {
                e->ids[ids++] = e->v[k].info->id;
                c->count++;
            }
    }
    qsort(e->clients, e->client_count, sizeof(*e->clients), by_client);
}

static int fill_segment(struct encoding *e, uint32_t i, struct mcfs_error *err)
{
    const struct segment_info *g = e->v[i].info;
    const struct mcfs_alloc_state *s = e->v[i].state;
    struct snap_allocator *a = &e->allocators[i];
    *a = (struct snap_allocator){.segment_name = mcfs_slice(g->name, g->name_len),
                                 .segment_base = g->base,
                                 .total_bytes = g->size,
                                 .used_bytes = s->allocated_size,
                                 .endpoint = mcfs_slice(g->endpoint, g->endpoint_len),
                                 .base = s->base,
                                 .multiplier_bits = s->multiplier_bits,
                                 .capacity = s->capacity,
                                 .allocated_size = s->allocated_size,
                                 .allocated_count = s->allocated_count,
                                 .size = s->size,
                                 .current_capacity = s->current_capacity,
                                 .max_capacity = s->max_capacity,
                                 .free_storage = s->free_storage,
                                 .used_bins_top = s->used_bins_top,
                                 .free_offset = s->free_offset};
    memcpy(a->used_bins, s->used_bins, sizeof(a->used_bins));
    memcpy(a->bin_heads, s->bin_heads, sizeof(a->bin_heads));
    size_t n = s->current_capacity;
    _cleanup_free_ struct snap_alloc_node *nodes = calloc(n ? n : 1, sizeof(*nodes));
    if (!nodes)
        return mcfs_fail_errno(err, ENOMEM, "segments");
    for (size_t k = 0; k < n; k++)
        nodes[k] = (struct snap_alloc_node){.data_offset = s->nodes[k].data_offset,
                                            .data_size = s->nodes[k].data_size,
                                            .bin_prev = s->nodes[k].bin_prev,
                                            .bin_next = s->nodes[k].bin_next,
                                            .neighbour_prev = s->nodes[k].neighbour_prev,
                                            .neighbour_next = s->nodes[k].neighbour_next,
                                            .used = s->nodes[k].used};
    e->segments[i] =
        (struct snap_segment){.id = g->id,
                              .name = a->segment_name,
                              .base = g->base,
                              .size = g->size,
                              .endpoint = a->endpoint,
                              .status = g->state == SEGMENT_DRAINING ? STATUS_DRAINING : STATUS_OK,
                              .allocator = a,
                              .host = mcfs_slice(g->host, g->host_len)};
    return snap_allocator_pack(a, nodes, s->free_nodes, &e->packed[i], err);
}

static int fill(struct directory *d, struct encoding *e, struct mcfs_error *err)
{
    uint32_t max = segments_max(d->segments) + 1;
    e->v = calloc(max, sizeof(*e->v));
    e->segments = calloc(max, sizeof(*e->segments));
    e->allocators = calloc(max, sizeof(*e->allocators));
    e->packed = calloc(max, sizeof(*e->packed));
    e->names = calloc(max, sizeof(*e->names));
    e->clients = calloc(max, sizeof(*e->clients));
    e->ids = calloc(max, sizeof(*e->ids));
    if (!e->v || !e->segments || !e->allocators || !e->packed || !e->names || !e->clients ||
        !e->ids)
        return mcfs_fail_errno(err, ENOMEM, "segments");
    for (uint32_t i = 1; i < max; i++)
        e->count += segments_peek(d->segments, i, &e->v[e->count]);
    qsort(e->v, e->count, sizeof(*e->v), by_order);
    fill_names_and_clients(d, e);
    qsort(e->v, e->count, sizeof(*e->v), by_id);
    for (uint32_t i = 0; i < e->count; i++)
        if (fill_segment(e, i, err))
            return -1;
    return 0;
}

/* The local disks of a store whose clients are the nodes; in the order of the ids. */
static struct snap_local_disk *disks_of_nodes(const struct snap_node *nodes, uint32_t count)
{
    struct snap_local_disk *disks = calloc(count ? count : 1, sizeof(*disks));
    for (uint32_t i = 0; disks && i < count; i++) {
        uint32_t at = i;
        for (; at && compare_ids(disks[at - 1].client, nodes[i].id) > 0; at--)
            disks[at] = disks[at - 1];
        disks[at] = (struct snap_local_disk){.client = nodes[i].id,
                                             .enable_offloading = true,
                                             .capacity_bytes = (int64_t)nodes[i].capacity_bytes};
    }
    return disks;
}

int directory_encode_segments(struct directory *d, struct mcfs_slice carried,
                              const struct snap_node *nodes, uint32_t node_count,
                              struct mcfs_buf *out, struct mcfs_error *err)
{
    struct encoding e = {0};
    struct snap_segments *old = NULL;
    _cleanup_free_ struct snap_local_disk *disks = NULL;
    int rc = fill(d, &e, err);
    if (rc == 0 && carried.len && !(old = snap_segments_decode(carried, err)))
        rc = -1;
    if (rc == 0 && (e.count || old)) {
        struct snap_segments s = {.allocator_type = old ? old->allocator_type : 1,
                                  .names = e.names,
                                  .name_count = e.name_count,
                                  .segments = e.segments,
                                  .segment_count = e.count,
                                  .clients = e.clients,
                                  .client_count = e.client_count};
        if (old) {
            s.local_disks = old->local_disks;
            s.local_disk_count = old->local_disk_count;
        } else if ((disks = disks_of_nodes(nodes, node_count))) {
            s.local_disks = disks;
            s.local_disk_count = node_count;
        }
        rc = snap_segments_encode(&s, out, err);
    }
    snap_segments_free(old);
    free_encoding(&e);
    return rc;
}

/* ---- what is held ---- */

struct held_list {
    struct directory *d;
    struct mcfs_buf body;
    uint32_t count;
    int64_t wall_ms, mono_ms;
};

static void put_entry(struct held_list *l, const struct segment_range *r, uint64_t id,
                      int64_t until_mono_ms)
{
    struct mcfs_buf *b = &l->body;
    mp_put_array(b, 4);
    mp_put_int(b, l->wall_ms + until_mono_ms - l->mono_ms);
    mp_put_uint(b, r->size);
    mp_put_uint(b, 1);
    mp_put_array(b, 4);
    mp_put_uint(b, id);
    mp_put_int(b, MCFS_REPLICA_PROCESSING);
    mp_put_int(b, MCFS_REPLICA_MEMORY);
    encode_memory_replica(l->d, r, b);
    l->count++;
}

static void put_begun(const struct segment_range *r, uint64_t id, int64_t started_mono_ms,
                      void *arg)
{
    struct held_list *l = arg;
    put_entry(l, r, id, started_mono_ms + l->d->config.put_release_ms);
}

/* One that was restored: as it was, while its ranges are held. */
static int put_carried(const struct snap_discarded *e, void *arg, struct mcfs_error *err)
{
    struct held_list *l = arg;
    bool memory = e->replica_count > 0;
    (void)err;
    for (uint32_t i = 0; i < e->replica_count; i++)
        memory &= e->replicas[i].type == MCFS_REPLICA_MEMORY;
    if (memory && l->mono_ms >= l->d->carried_until_mono_ms)
        return 0;
    _cleanup_buf_ struct mcfs_buf one = MCFS_BUF_INIT;
    snap_discarded_encode(e, 1, &one);
    mcfs_buf_append(&l->body, one.data + 1, one.len - 1); /* without the array of one around it */
    l->count++;
    return 0;
}

int directory_encode_held(struct directory *d, struct mcfs_slice carried, struct mcfs_buf *out,
                          struct mcfs_error *err)
{
    struct held_list l = {
        .d = d, .body = MCFS_BUF_INIT, .wall_ms = mcfs_wall_ms(), .mono_ms = mcfs_mono_ms()};
    struct segment_range r;
    struct segment_peek g;
    int64_t until;
    int rc = carried.len ? snap_discarded_decode(carried, put_carried, &l, err) : 0;
    put_spaces_peek(d, put_begun, &l);
    for (uint32_t i = 0; segments_peek_held(d->segments, i, &r, &until); i++)
        if (until && segments_peek(d->segments, r.segment, &g))
            put_entry(&l, &r, 0, until);
    mp_put_array(out, l.count);
    mcfs_buf_append(out, l.body.data, l.body.len);
    if (rc == 0 && (l.body.failed || out->failed))
        rc = mcfs_fail_errno(err, ENOMEM, "snapshot");
    mcfs_buf_free(&l.body);
    return rc;
}
