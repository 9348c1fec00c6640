/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file `segments` as structs.  Everything that is decoded hangs on one struct and is freed with
 * it; strings, and the large arrays of allocators in their packed form, stay slices of the input.
 */
#include "snapshot/segments.h"

#include "common/cleanup.h"
#include "common/id.h"
#include "common/mp.h"

/* Bounds on what is kept per entry, far above any cluster's numbers. */
#define SEGMENTS_MAX (1u << 20)
#define OFFLOAD_TASKS_MAX (1u << 22)
#define MULTIPLIER_BITS_MAX 31

struct decoded {
    struct snap_segments s; /* first */
    struct mcfs_slice *names;
    struct snap_segment *segments;
    struct snap_client_segments *clients;
    struct snap_local_disk *local_disks;
    uint32_t tasks_left;
};

void snap_segments_free(struct snap_segments *s)
{
    struct decoded *d = (struct decoded *)s;
    if (!d)
        return;
    for (uint32_t i = 0; i < s->segment_count; i++)
        free((void *)(uintptr_t)s->segments[i].allocator);
    for (uint32_t i = 0; i < s->client_count; i++)
        free((void *)(uintptr_t)s->clients[i].segments);
    for (uint32_t i = 0; i < s->local_disk_count; i++)
        free((void *)(uintptr_t)s->local_disks[i].tasks);
    free(d->names);
    free(d->segments);
    free(d->clients);
    free(d->local_disks);
    free(d);
}

static bool read_id(struct mp_reader *p, struct mcfs_id *id)
{
    struct mcfs_slice text;
    return mp_read_raw(p, &text) && mcfs_id_parse(text, id) == 0;
}

static bool read_i16(struct mp_reader *p, int16_t *v)
{
    int64_t wide;
    bool ok = mp_read_int(p, &wide) && wide >= INT16_MIN && wide <= INT16_MAX;
    *v = ok ? (int16_t)wide : 0;
    return ok;
}

/* Room for a container's elements; each has at least min_bytes in what is left to read. */
static void *room_for(const struct mp_reader *p, uint32_t count, size_t element, size_t min_bytes)
{
    if (count > SEGMENTS_MAX || count > (size_t)(p->end - p->p) / min_bytes)
        return NULL;
    return calloc(count ? count : 1, element);
}

static bool read_names(struct mp_reader *p, struct decoded *d)
{
    uint32_t n;
    if (d->names || !mp_read_array(p, &n) || !(d->names = room_for(p, n, sizeof(*d->names), 1)))
        return false;
    d->s.names = d->names;
    while (d->s.name_count < n)
        if (!mp_read_raw(p, &d->names[d->s.name_count++]))
            return false;
    return true;
}

/* ---- allocators ---- */

/* A bin, or an array of small integers: skipped as it is. */
static bool read_packed(struct mp_reader *p, struct mcfs_slice *v)
{
    enum mp_type type = mp_peek(p);
    return (type == MP_BIN || type == MP_ARRAY) && mp_skip(p, v);
}

static bool read_core(struct mp_reader *p, struct snap_allocator *a)
{
    uint32_t v;
    if (!mp_read_array_of(p, 10) || !mp_read_u32_max(p, UINT32_MAX, &a->state.size) ||
        !mp_read_u32_max(p, MCFS_ALLOC_NODES_MAX, &a->state.current_capacity) ||
        !mp_read_u32_max(p, MCFS_ALLOC_NODES_MAX, &a->state.max_capacity) ||
        !mp_read_u32_max(p, UINT32_MAX, &a->state.free_storage) ||
        !mp_read_u32_max(p, UINT32_MAX, &a->state.used_bins_top) ||
        !mp_read_array_of(p, MCFS_ARRAY_SIZE(a->state.used_bins)) ||
        a->state.current_capacity > a->state.max_capacity)
        return false;
    for (size_t i = 0; i < MCFS_ARRAY_SIZE(a->state.used_bins); i++) {
        if (!mp_read_u32_max(p, UINT8_MAX, &v))
            return false;
        a->state.used_bins[i] = (uint8_t)v;
    }
    if (!mp_read_array_of(p, MCFS_ARRAY_SIZE(a->state.bin_heads)))
        return false;
    for (size_t i = 0; i < MCFS_ARRAY_SIZE(a->state.bin_heads); i++)
        if (!mp_read_u32_max(p, UINT32_MAX, &a->state.bin_heads[i]) ||
            !is_node_or_none(a, a->state.bin_heads[i]))
            return false;
    return read_packed(p, &a->packed_nodes) && read_packed(p, &a->packed_free) &&
           mp_read_u32_max(p, a->state.current_capacity, &a->state.free_offset);
}

static bool read_allocator(struct mp_reader *p, struct snap_allocator *a)
{
    return mp_read_array_of(p, 6) && mp_read_raw(p, &a->segment_name) &&
           mp_read_uint(p, &a->segment_base) && mp_read_uint(p, &a->total_bytes) &&
           mp_read_uint(p, &a->used_bytes) && mp_read_raw(p, &a->endpoint) &&
           mp_read_array_of(p, 6) && mp_read_uint(p, &a->state.base) &&
           mp_read_uint(p, &a->state.multiplier_bits) &&
           a->state.multiplier_bits <= MULTIPLIER_BITS_MAX && mp_read_uint(p, &a->state.capacity) &&
           mp_read_uint(p, &a->state.allocated_size) &&
           mp_read_uint(p, &a->state.allocated_count) && read_core(p, a);
}

/* ---- maps ---- */

static bool read_segment(struct mp_reader *p, struct snap_segment *s)
{
    struct mcfs_id key;
    uint32_t len;
    bool has_allocator;
    if (!read_id(p, &key) || !mp_read_array(p, &len) || (len != 8 && len != 9) ||
        !read_id(p, &s->id) || !mcfs_id_eq(key, s->id) || !mp_read_raw(p, &s->name) ||
        !mp_read_uint(p, &s->base) || !mp_read_uint(p, &s->size) || !mp_read_raw(p, &s->endpoint) ||
        !read_i16(p, &s->status) || !mp_read_bool(p, &has_allocator))
        return false;
    if (has_allocator) {
        struct snap_allocator *a = calloc(1, sizeof(*a));
        s->allocator = a;
        if (!a || !read_allocator(p, a))
            return false;
    } else if (!mp_read_nil(p)) {
        return false;
    }
    return len == 8 || mp_read_raw(p, &s->host);
}

static bool read_segments(struct mp_reader *p, struct decoded *d)
{
    uint32_t n;
    if (d->segments || !mp_read_map(p, &n) ||
        !(d->segments = room_for(p, n, sizeof(*d->segments), 10)))
        return false;
    d->s.segments = d->segments;
    while (d->s.segment_count < n)
        if (!read_segment(p, &d->segments[d->s.segment_count++]))
            return false;
    return true;
}

static bool read_client(struct mp_reader *p, struct snap_client_segments *c)
{
    uint32_t n;
    struct mcfs_id *ids;
    if (!read_id(p, &c->client) || !mp_read_array(p, &n) ||
        !(c->segments = ids = room_for(p, n, sizeof(*ids), 4)))
        return false;
    while (c->count < n)
        if (!read_id(p, &ids[c->count++]))
            return false;
    return true;
}

static bool read_clients(struct mp_reader *p, struct decoded *d)
{
    uint32_t n;
    if (d->clients || !mp_read_map(p, &n) || !(d->clients = room_for(p, n, sizeof(*d->clients), 5)))
        return false;
    d->s.clients = d->clients;
    while (d->s.client_count < n)
        if (!read_client(p, &d->clients[d->s.client_count++]))
            return false;
    return true;
}

/* `[tenant, key, size]`, or in older files the size alone. */
static bool read_offload_task(struct mp_reader *p, struct snap_offload_task *t)
{
    if (!mp_read_raw(p, &t->encoded_key))
        return false;
    if (mp_peek(p) == MP_ARRAY)
        return mp_read_array_of(p, 3) && mp_read_raw(p, &t->tenant) && mp_read_raw(p, &t->key) &&
               mp_read_int(p, &t->size);
    const char *data = t->encoded_key.data;
    const char *zero = t->encoded_key.len ? memchr(data, 0, t->encoded_key.len) : NULL;
    size_t head = zero ? (size_t)(zero - data) : 0;
    t->tenant = zero ? mcfs_slice(data, head) : MCFS_SLICE_LITERAL(MCFS_DEFAULT_TENANT);
    t->key = zero ? mcfs_slice(zero + 1, t->encoded_key.len - head - 1) : t->encoded_key;
    return mp_read_int(p, &t->size);
}

/* The tasks lie flat in the client's array, two elements each, between the head and the capacity.
 */
static bool read_local_disk(struct mp_reader *p, struct decoded *d, struct snap_local_disk *l)
{
    uint32_t len, n;
    struct snap_offload_task *tasks;
    if (!read_id(p, &l->client) || !mp_read_array(p, &len) || len < 3 ||
        !mp_read_bool(p, &l->enable_offloading) || !mp_read_u32_max(p, d->tasks_left, &n) ||
        len - 3 != 2 * n || n > (size_t)(p->end - p->p) / 2)
        return false;
    d->tasks_left -= n;
    l->tasks = tasks = calloc(n ? n : 1, sizeof(*tasks));
    if (!tasks)
        return false;
    while (l->task_count < n)
        if (!read_offload_task(p, &tasks[l->task_count++]))
            return false;
    return mp_read_int(p, &l->capacity_bytes);
}

static bool read_local_disks(struct mp_reader *p, struct decoded *d)
{
    uint32_t n;
    if (d->local_disks || !mp_read_map(p, &n) ||
        !(d->local_disks = room_for(p, n, sizeof(*d->local_disks), 7)))
        return false;
    d->s.local_disks = d->local_disks;
    while (d->s.local_disk_count < n)
        if (!read_local_disk(p, d, &d->local_disks[d->s.local_disk_count++]))
            return false;
    return true;
}

static bool read_field(struct mp_reader *p, struct decoded *d)
{
    struct mcfs_slice name;
    int64_t type;
    if (!mp_read_raw(p, &name))
        return false;
    if (mcfs_slice_eq(name, MCFS_SLICE_LITERAL("ma"))) {
        if (!mp_read_int(p, &type) || type < INT32_MIN || type > INT32_MAX)
            return false;
        d->s.allocator_type = (int32_t)type;
        return true;
    }
    if (mcfs_slice_eq(name, MCFS_SLICE_LITERAL("an")))
        return read_names(p, d);
    if (mcfs_slice_eq(name, MCFS_SLICE_LITERAL("ms")))
        return read_segments(p, d);
    if (mcfs_slice_eq(name, MCFS_SLICE_LITERAL("cs")))
        return read_clients(p, d);
    if (mcfs_slice_eq(name, MCFS_SLICE_LITERAL("ld")))
        return read_local_disks(p, d);
    return mp_skip(p, NULL);
}

struct snap_segments *snap_segments_decode(struct mcfs_slice content, struct mcfs_error *err)
{
    struct mp_reader p = mp_reader(content.data, content.len);
    struct decoded *d = calloc(1, sizeof(*d));
    uint32_t fields;
    if (!d) {
        mcfs_fail_errno(err, ENOMEM, "segments");
        return NULL;
    }
    d->tasks_left = OFFLOAD_TASKS_MAX;
    bool good = mp_read_map(&p, &fields);
    for (uint32_t i = 0; good && i < fields; i++)
        good = read_field(&p, d);
    if (good && mp_done(&p) && d->names && d->segments && d->clients && d->local_disks)
        return &d->s;
    snap_segments_free(&d->s);
    mcfs_fail(err, MCFS_FILE_READ_FAIL, "segments of another form than expected (at byte %zu)",
              (size_t)(p.p - (const uint8_t *)content.data));
    return NULL;
}
