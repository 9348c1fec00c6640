/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/offset/offset_meta.h"

#include "backends/proto.h"

#define NODE_SIZE 28u
#define STATE_HEAD 1120u /* bytes before the nodes */
#define BINS_SIZE (32u + 256u * 4u)
#define NODES_MAX (1u << 24)

static int bad(struct mcfs_error *err, const char *what)
{
    return mcfs_fail(err, MCFS_INVALID_PARAMS, "not a checkpoint of the offset allocator: %s",
                     what);
}

static int parse_state(struct mcfs_slice state, struct offset_meta *m, struct mcfs_error *err)
{
    struct mcfs_cursor c = mcfs_cursor(state.data, state.len);
    mcfs_cursor_u64(&c); /* base */
    uint64_t bits = mcfs_cursor_u64(&c);
    m->capacity = mcfs_cursor_u64(&c);
    mcfs_cursor_bytes(&c, 16); /* allocated bytes, allocations */
    mcfs_cursor_u32(&c);       /* size in units */
    uint32_t current = mcfs_cursor_u32(&c), max = mcfs_cursor_u32(&c);
    mcfs_cursor_bytes(&c, 8); /* free storage, used bins */
    mcfs_cursor_bytes(&c, BINS_SIZE);
    uint32_t free_offset = mcfs_cursor_u32(&c);
    if (c.failed || bits >= 32 || m->capacity == 0 || max == 0 || max > NODES_MAX ||
        current > max || free_offset > current)
        return bad(err, "the allocator's numbers are out of range");
    if (state.len - STATE_HEAD != (uint64_t)current * (NODE_SIZE + 4))
        return bad(err, "the allocator's nodes are cut short");
    m->shift = (unsigned)bits;
    m->node_count = current;
    m->nodes = mcfs_cursor_bytes(&c, (uint64_t)current * NODE_SIZE);
    return 0;
}

static bool parse_fifo(struct mcfs_slice bytes)
{
    struct mcfs_cursor c = mcfs_cursor(bytes.data, bytes.len);
    struct proto_field f;
    while (mcfs_cursor_left(&c) > 0)
        if (!proto_next(&c, &f) || (f.number <= 2 && f.is_bytes != (f.number == 2)))
            return false;
    return !c.failed;
}

static int by_key(const void *a, const void *b)
{
    return mcfs_slice_cmp(*(const struct mcfs_slice *)a, *(const struct mcfs_slice *)b);
}

static int add_evicted(struct offset_meta *m, size_t *cap, struct mcfs_slice key)
{
    if (m->evicted_count == *cap) {
        *cap = *cap ? *cap * 2 : 64;
        struct mcfs_slice *list = realloc(m->evicted, *cap * sizeof(*list));
        if (!list)
            return -1;
        m->evicted = list;
    }
    m->evicted[m->evicted_count++] = key;
    return 0;
}

/* What each of the fields 1 to 5 holds: bytes or a number. */
static bool has_right_type(const struct proto_field *f)
{
    return f->number > 5 || f->is_bytes == (f->number != 1 && f->number != 3);
}

int offset_meta_parse(const void *data, size_t len, struct offset_meta *out, struct mcfs_error *err)
{
    struct mcfs_cursor c = mcfs_cursor(data, len);
    struct mcfs_slice state = {NULL, 0};
    struct proto_field f;
    size_t cap = 0;
    uint64_t version = 0;
    *out = (struct offset_meta){0};
    while (mcfs_cursor_left(&c) > 0) {
        if (!proto_next(&c, &f))
            return bad(err, "it is no protobuf message");
        if (f.number == 1 && !f.is_bytes)
            version = f.value;
        else if (version && version != OFFSET_META_VERSION)
            continue; /* whatever its fields are */
        else if (!has_right_type(&f) || (f.number == 4 && !parse_fifo(f.bytes)))
            return bad(err, "a field has another type");
        else if (f.number == 2)
            state = f.bytes;
        else if (f.number == 3)
            out->insert_seq = f.value;
        else if (f.number == 5 && add_evicted(out, &cap, f.bytes))
            return mcfs_fail_errno(err, ENOMEM, "checkpoint");
    }
    out->version = version > UINT32_MAX ? UINT32_MAX : (uint32_t)version;
    if (out->version != OFFSET_META_VERSION)
        return len ? 0 : bad(err, "it is empty");
    if (out->evicted_count)
        qsort(out->evicted, out->evicted_count, sizeof(*out->evicted), by_key);
    return parse_state(state, out, err);
}

void offset_meta_free(struct offset_meta *m)
{
    free(m->evicted);
    m->evicted = NULL;
    m->evicted_count = 0;
}

struct offset_node offset_meta_node(const struct offset_meta *m, uint32_t i)
{
    struct mcfs_cursor c = mcfs_cursor(m->nodes + (size_t)i * NODE_SIZE, NODE_SIZE);
    uint64_t offset = mcfs_cursor_u32(&c), length = mcfs_cursor_u32(&c);
    mcfs_cursor_bytes(&c, 16); /* links */
    return (struct offset_node){offset << m->shift, length << m->shift, mcfs_cursor_u8(&c) == 1};
}

bool offset_meta_was_evicted(const struct offset_meta *m, struct mcfs_slice key)
{
    return m->evicted_count &&
           bsearch(&key, m->evicted, m->evicted_count, sizeof(key), by_key) != NULL;
}

/* ---- writing ---- */

static void put_node(uint8_t *to, const struct mcfs_alloc_node *n)
{
    const uint32_t words[6] = {n->data_offset, n->data_size,      n->bin_prev,
                               n->bin_next,    n->neighbour_prev, n->neighbour_next};
    memcpy(to, words, sizeof(words));
    memset(to + sizeof(words), 0, NODE_SIZE - sizeof(words));
    to[sizeof(words)] = n->used;
}

static void put_state(struct mcfs_buf *b, const struct mcfs_alloc_state *s)
{
    const uint64_t longs[5] = {s->base, s->multiplier_bits, s->capacity, s->allocated_size,
                               s->allocated_count};
    const uint32_t words[5] = {s->size, s->current_capacity, s->max_capacity, s->free_storage,
                               s->used_bins_top};
    mcfs_buf_append(b, longs, sizeof(longs));
    mcfs_buf_append(b, words, sizeof(words));
    mcfs_buf_append(b, s->used_bins, sizeof(s->used_bins));
    mcfs_buf_append(b, s->bin_heads, sizeof(s->bin_heads));
    mcfs_buf_append(b, &s->free_offset, sizeof(s->free_offset));
    size_t bytes = (size_t)s->current_capacity * NODE_SIZE;
    uint8_t *nodes = mcfs_buf_reserve(b, bytes);
    for (uint32_t i = 0; nodes && i < s->current_capacity; i++)
        put_node(nodes + (size_t)i * NODE_SIZE, &s->nodes[i]);
    b->len += nodes ? bytes : 0;
    mcfs_buf_append(b, s->free_nodes, (size_t)s->current_capacity * sizeof(*s->free_nodes));
}

void offset_meta_put(struct mcfs_buf *b, const struct mcfs_alloc_state *state, uint64_t insert_seq)
{
    proto_put_int(b, 1, OFFSET_META_VERSION);
    proto_put_varint(b, 2u << 3 | 2u);
    proto_put_varint(b, STATE_HEAD + (uint64_t)state->current_capacity * (NODE_SIZE + 4));
    put_state(b, state);
    proto_put_int(b, 3, insert_seq);
}

void offset_meta_put_fifo(struct mcfs_buf *b, uint64_t seq, struct mcfs_slice key)
{
    struct mcfs_buf entry = MCFS_BUF_INIT;
    proto_put_int(&entry, 1, seq);
    proto_put_bytes(&entry, 2, key);
    if (entry.failed)
        b->failed = true;
    else
        proto_put_bytes(b, 4, mcfs_slice(entry.data, entry.len));
    mcfs_buf_free(&entry);
}
