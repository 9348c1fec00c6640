/* SPDX-License-Identifier: Apache-2.0 */
/* Segments, allocators and clients as the file `segments` holds them. */
#include "snapshot/segments.h"

#include "common/cleanup.h"
#include "common/id.h"
#include "common/mp.h"

static void put_id(struct mcfs_buf *b, struct mcfs_id id)
{
    char text[MCFS_ID_TEXT_MAX];
    mp_put_cstr(b, mcfs_id_format(id, text));
}

static void put_core(struct mcfs_buf *b, const struct snap_allocator *a)
{
    mp_put_array(b, 10);
    mp_put_uint(b, a->state.size);
    mp_put_uint(b, a->state.current_capacity);
    mp_put_uint(b, a->state.max_capacity);
    mp_put_uint(b, a->state.free_storage);
    mp_put_uint(b, a->state.used_bins_top);
    mp_put_array(b, MCFS_ARRAY_SIZE(a->state.used_bins));
    for (size_t i = 0; i < MCFS_ARRAY_SIZE(a->state.used_bins); i++)
        mp_put_uint(b, a->state.used_bins[i]);
    mp_put_array(b, MCFS_ARRAY_SIZE(a->state.bin_heads));
    for (size_t i = 0; i < MCFS_ARRAY_SIZE(a->state.bin_heads); i++)
        mp_put_uint(b, a->state.bin_heads[i]);
    mcfs_buf_append(b, a->packed_nodes.data, a->packed_nodes.len);
    mcfs_buf_append(b, a->packed_free.data, a->packed_free.len);
    mp_put_uint(b, a->state.free_offset);
}

static void put_allocator(struct mcfs_buf *b, const struct snap_allocator *a)
{
    mp_put_array(b, 6);
    mp_put_str(b, a->segment_name);
    mp_put_uint(b, a->segment_base);
    mp_put_uint(b, a->total_bytes);
    mp_put_uint(b, a->used_bytes);
    mp_put_str(b, a->endpoint);
    mp_put_array(b, 6);
    mp_put_uint(b, a->state.base);
    mp_put_uint(b, a->state.multiplier_bits);
    mp_put_uint(b, a->state.capacity);
    mp_put_uint(b, a->state.allocated_size);
    mp_put_uint(b, a->state.allocated_count);
    put_core(b, a);
}

static void put_segment(struct mcfs_buf *b, const struct snap_segment *s)
{
    put_id(b, s->id);
    mp_put_array(b, 9);
    put_id(b, s->id);
    mp_put_str(b, s->name);
    mp_put_uint(b, s->base);
    mp_put_uint(b, s->size);
    mp_put_str(b, s->endpoint);
    mp_put_int(b, s->status);
    mp_put_bool(b, s->allocator != NULL);
    if (s->allocator)
        put_allocator(b, s->allocator);
    else
        mp_put_nil(b);
    mp_put_str(b, s->host);
}

static void put_client(struct mcfs_buf *b, const struct snap_client_segments *c)
{
    put_id(b, c->client);
    mp_put_array(b, c->count);
    for (uint32_t i = 0; i < c->count; i++)
        put_id(b, c->segments[i]);
}

static void put_local_disk(struct mcfs_buf *b, const struct snap_local_disk *l)
{
    put_id(b, l->client);
    mp_put_array(b, 3 + 2 * l->task_count);
    mp_put_bool(b, l->enable_offloading);
    mp_put_uint(b, l->task_count);
    for (uint32_t i = 0; i < l->task_count; i++) {
        const struct snap_offload_task *t = &l->tasks[i];
        mp_put_str(b, t->encoded_key);
        mp_put_array(b, 3);
        mp_put_str(b, t->tenant);
        mp_put_str(b, t->key);
        mp_put_int(b, t->size);
    }
    mp_put_int(b, l->capacity_bytes);
}

int snap_segments_encode(const struct snap_segments *s, struct mcfs_buf *b, struct mcfs_error *err)
{
    for (uint32_t i = 0; i < s->segment_count; i++) {
        const struct snap_allocator *a = s->segments[i].allocator;
        if (a && (!a->packed_nodes.len || !a->packed_free.len))
            return mcfs_fail(err, MCFS_INVALID_PARAMS, "segment %.*s: its allocator is not packed",
                             MCFS_SLICE_ARG(s->segments[i].name));
    }
    mp_put_map(b, 5);
    mp_put_cstr(b, "ma");
    mp_put_int(b, s->allocator_type);
    mp_put_cstr(b, "an");
    mp_put_array(b, s->name_count);
    for (uint32_t i = 0; i < s->name_count; i++)
        mp_put_str(b, s->names[i]);
    mp_put_cstr(b, "ms");
    mp_put_map(b, s->segment_count);
    for (uint32_t i = 0; i < s->segment_count; i++)
        put_segment(b, &s->segments[i]);
    mp_put_cstr(b, "cs");
    mp_put_map(b, s->client_count);
    for (uint32_t i = 0; i < s->client_count; i++)
        put_client(b, &s->clients[i]);
    mp_put_cstr(b, "ld");
    mp_put_map(b, s->local_disk_count);
    for (uint32_t i = 0; i < s->local_disk_count; i++)
        put_local_disk(b, &s->local_disks[i]);
    return b->failed ? mcfs_fail_errno(err, ENOMEM, "segments") : 0;
}
