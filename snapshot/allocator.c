/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two large arrays of an offset allocator: `current_capacity` records of 25 bytes, and as many
 * slots of 4, each a zstd frame in a MessagePack bin (older writers: an array of small integers).
 */
#include "snapshot/segments.h"

#include "common/cleanup.h"
#include "common/cursor.h"
#include "common/mp.h"
#include "snapshot/frame.h"

#define NODE_BYTES 25
#define FREE_BYTES 4

static int corrupt(const struct snap_allocator *a, const char *what, struct mcfs_error *err)
{
    return mcfs_fail(err, MCFS_FILE_READ_FAIL, "segment %.*s: %s of its allocator",
                     (int)MCFS_MIN(a->segment_name.len, 100), a->segment_name.data, what);
}

/* The frame in a packed value, in either form. */
static bool frame_of(struct mcfs_slice packed, struct mcfs_buf *copy, struct mcfs_slice *frame)
{
    struct mp_reader p = mp_reader(packed.data, packed.len);
    uint32_t n, byte;
    if (mp_peek(&p) == MP_BIN)
        return mp_read_bin(&p, frame);
    if (!mp_read_array(&p, &n) || !mcfs_buf_reserve(copy, n ? n : 1))
        return false;
    for (uint32_t i = 0; i < n; i++) {
        if (!mp_read_u32_max(&p, UINT8_MAX, &byte))
            return false;
        copy->data[copy->len++] = (uint8_t)byte;
    }
    *frame = mcfs_slice(copy->data, copy->len);
    return true;
}

static int unpack(const struct snap_allocator *a, struct mcfs_slice packed, size_t record,
                  const char *what, struct mcfs_buf *out, struct mcfs_error *err)
{
    _cleanup_buf_ struct mcfs_buf copy = MCFS_BUF_INIT;
    struct mcfs_slice frame;
    struct mcfs_error bad = MCFS_ERROR_INIT;
    if (!frame_of(packed, &copy, &frame))
        return corrupt(a, what, err);
    if (frame_unpack_exact(frame, (uint64_t)a->state.current_capacity * record, out, &bad)) {
        corrupt(a, what, err);
        return mcfs_error_prefix(err, "%s", bad.msg);
    }
    return 0;
}

static int read_nodes(const struct snap_allocator *a, struct mcfs_slice content,
                      struct mcfs_alloc_node *nodes, struct mcfs_error *err)
{
    struct mcfs_cursor c = mcfs_cursor(content.data, content.len);
    for (uint32_t i = 0; i < a->state.current_capacity; i++) {
        struct mcfs_alloc_node *n = &nodes[i];
        n->used = mcfs_cursor_u8(&c) != 0;
        n->data_offset = mcfs_cursor_u32(&c);
        n->data_size = mcfs_cursor_u32(&c);
        n->bin_prev = mcfs_cursor_u32(&c);
        n->bin_next = mcfs_cursor_u32(&c);
        n->neighbour_prev = mcfs_cursor_u32(&c);
        n->neighbour_next = mcfs_cursor_u32(&c);
        if (!is_node_or_none(a, n->bin_prev) || !is_node_or_none(a, n->bin_next) ||
            !is_node_or_none(a, n->neighbour_prev) || !is_node_or_none(a, n->neighbour_next))
            return corrupt(a, "a node", err);
    }
    return c.failed ? corrupt(a, "nodes", err) : 0;
}

static int read_free(const struct snap_allocator *a, struct mcfs_slice content, uint32_t *slots,
                     struct mcfs_error *err)
{
    struct mcfs_cursor c = mcfs_cursor(content.data, content.len);
    for (uint32_t i = 0; i < a->state.current_capacity; i++) {
        slots[i] = mcfs_cursor_u32(&c);
        if (!is_node_or_none(a, slots[i]))
            return corrupt(a, "a free node", err);
    }
    return c.failed ? corrupt(a, "free nodes", err) : 0;
}

int snap_allocator_unpack(const struct snap_allocator *a, struct mcfs_alloc_node **nodes,
                          uint32_t **free_nodes, struct mcfs_error *err)
{
    _cleanup_buf_ struct mcfs_buf node_bytes = MCFS_BUF_INIT, free_bytes = MCFS_BUF_INIT;
    *nodes = NULL;
    *free_nodes = NULL;
    if (a->state.current_capacity > MCFS_ALLOC_NODES_MAX)
        return corrupt(a, "the capacity", err);
    if (unpack(a, a->packed_nodes, NODE_BYTES, "nodes", &node_bytes, err) ||
        unpack(a, a->packed_free, FREE_BYTES, "free nodes", &free_bytes, err))
        return -1;
    size_t n = a->state.current_capacity ? a->state.current_capacity : 1;
    _cleanup_free_ struct mcfs_alloc_node *v = calloc(n, sizeof(*v));
    _cleanup_free_ uint32_t *slots = calloc(n, sizeof(*slots));
    if (!v || !slots)
        return mcfs_fail_errno(err, ENOMEM, "segments");
    if (read_nodes(a, mcfs_slice(node_bytes.data, node_bytes.len), v, err) ||
        read_free(a, mcfs_slice(free_bytes.data, free_bytes.len), slots, err))
        return -1;
    *nodes = MCFS_STEAL(v);
    *free_nodes = MCFS_STEAL(slots);
    return 0;
}

static int put_bin(struct mcfs_slice content, struct mcfs_buf *out, struct mcfs_error *err)
{
    _cleanup_buf_ struct mcfs_buf frame = MCFS_BUF_INIT;
    if (frame_pack(NULL, content, &frame, err))
        return -1;
    mp_put_bin(out, frame.data, frame.len);
    return 0;
}

int snap_allocator_pack(struct snap_allocator *a, const struct mcfs_alloc_node *nodes,
                        const uint32_t *free_nodes, struct mcfs_buf *out, struct mcfs_error *err)
{
    _cleanup_buf_ struct mcfs_buf bytes = MCFS_BUF_INIT;
    if (a->state.current_capacity > MCFS_ALLOC_NODES_MAX)
        return corrupt(a, "the capacity", err);
    for (uint32_t i = 0; i < a->state.current_capacity; i++) {
        const struct mcfs_alloc_node *n = &nodes[i];
        uint8_t used = n->used;
        mcfs_buf_append(&bytes, &used, 1);
        mcfs_buf_u32(&bytes, n->data_offset);
        mcfs_buf_u32(&bytes, n->data_size);
        mcfs_buf_u32(&bytes, n->bin_prev);
        mcfs_buf_u32(&bytes, n->bin_next);
        mcfs_buf_u32(&bytes, n->neighbour_prev);
        mcfs_buf_u32(&bytes, n->neighbour_next);
    }
    size_t start = out->len;
    if (!bytes.failed && put_bin(mcfs_slice(bytes.data, bytes.len), out, err))
        return -1;
    size_t middle = out->len;
    if (put_bin(mcfs_slice(free_nodes, (size_t)a->state.current_capacity * FREE_BYTES), out, err))
        return -1;
    if (bytes.failed || out->failed)
        return mcfs_fail_errno(err, ENOMEM, "segments");
    a->packed_nodes = mcfs_slice(out->data + start, middle - start);
    a->packed_free = mcfs_slice(out->data + middle, out->len - middle);
    return 0;
}
