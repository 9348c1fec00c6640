/* SPDX-License-Identifier: Apache-2.0 */
#include "common/offset_allocator.h"

#include "common/cleanup.h"

#include <string.h>

#define NONE MCFS_ALLOC_NONE
#define MANTISSA_BITS 3
#define LEAVES (1u << MANTISSA_BITS) /* bins of one top bin */
#define BINS 256
#define NODES_FIRST 256u
#define OWN_BIN_TRIES 8 /* of the bin that holds ranges both longer and shorter than wanted */

struct mcfs_offset_allocator {
    struct mcfs_alloc_state s;
};

/* ---- bins ---- */

/* The bin whose ranges are at least as long as its own size, and which a range of this size hangs
 * in: the size as a small float, rounded down. */
static uint32_t bin_below(uint32_t size)
{
    if (size < LEAVES)
        return size;
    uint32_t high = 31 - (uint32_t)__builtin_clz(size), shift = high - MANTISSA_BITS;
    return (shift + 1) << MANTISSA_BITS | (size >> shift & (LEAVES - 1));
}

/* The first bin all of whose ranges are long enough: rounded up. */
static uint32_t bin_above(uint32_t size)
{
    if (size < LEAVES)
        return size;
    uint32_t high = 31 - (uint32_t)__builtin_clz(size), shift = high - MANTISSA_BITS;
    return bin_below(size) + ((size & ((1u << shift) - 1)) != 0);
}

static uint32_t lowest_from(uint32_t mask, uint32_t from)
{
    uint32_t rest = from < 32 ? mask & ~((1u << from) - 1) : 0;
    return rest ? (uint32_t)__builtin_ctz(rest) : NONE;
}

/* The lowest bin from `from` on that is not empty, or NONE. */
static uint32_t find_bin(const struct mcfs_alloc_state *s, uint32_t from)
{
    if (from >= BINS)
        return NONE;
    uint32_t top = from / LEAVES;
    uint32_t leaf = lowest_from(s->used_bins[top], from % LEAVES);
    if (leaf == NONE) {
        top = lowest_from(s->used_bins_top, top + 1);
        if (top == NONE)
            return NONE;
        leaf = (uint32_t)__builtin_ctz(s->used_bins[top]);
    }
    return top * LEAVES + leaf;
}

static void link_bin(struct mcfs_alloc_state *s, uint32_t node)
{
    struct mcfs_alloc_node *n = &s->nodes[node];
    uint32_t bin = bin_below(n->data_size), head = s->bin_heads[bin];
    if (head == NONE) {
        s->used_bins[bin / LEAVES] |= (uint8_t)(1u << bin % LEAVES);
        s->used_bins_top |= 1u << bin / LEAVES;
    } else {
        s->nodes[head].bin_prev = node;
    }
    n->bin_prev = NONE;
    n->bin_next = head;
    s->bin_heads[bin] = node;
    s->free_storage += n->data_size;
}

static void unlink_bin(struct mcfs_alloc_state *s, uint32_t node)
{
    struct mcfs_alloc_node *n = &s->nodes[node];
    s->free_storage -= n->data_size;
    if (n->bin_next != NONE)
        s->nodes[n->bin_next].bin_prev = n->bin_prev;
    if (n->bin_prev != NONE) {
        s->nodes[n->bin_prev].bin_next = n->bin_next;
    } else {
        uint32_t bin = bin_below(n->data_size);
        s->bin_heads[bin] = n->bin_next;
        if (n->bin_next == NONE) {
            s->used_bins[bin / LEAVES] &= (uint8_t) ~(1u << bin % LEAVES);
            if (!s->used_bins[bin / LEAVES])
                s->used_bins_top &= ~(1u << bin / LEAVES);
        }
    }
    n->bin_prev = n->bin_next = NONE;
}

/* ---- nodes ---- */

static bool grow(struct mcfs_alloc_state *s)
{
    uint32_t cap = s->current_capacity ? s->current_capacity * 2 : NODES_FIRST;
    cap = MCFS_MIN(cap, s->max_capacity);
    if (cap == s->current_capacity)
        return false;
    struct mcfs_alloc_node *nodes = realloc(s->nodes, cap * sizeof(*nodes));
    if (nodes)
        s->nodes = nodes;
    uint32_t *free_nodes = realloc(s->free_nodes, cap * sizeof(*free_nodes));
    if (free_nodes)
        s->free_nodes = free_nodes;
    if (!nodes || !free_nodes)
        return false;
    for (uint32_t i = s->current_capacity; i < cap; i++) {
        s->nodes[i] = (struct mcfs_alloc_node){0, 0, NONE, NONE, NONE, NONE, false};
        s->free_nodes[i] = i;
    }
    s->current_capacity = cap;
    return true;
}

static bool have_nodes(struct mcfs_alloc_state *s, uint32_t n)
{
    while (s->current_capacity - s->free_offset < n)
        if (!grow(s))
            return false;
    return true;
}

/* A free range behind `prev` and before `next`; there is a node for it. */
static uint32_t make_free(struct mcfs_alloc_state *s, uint32_t offset, uint32_t size, uint32_t prev,
                          uint32_t next)
{
    uint32_t node = s->free_nodes[s->free_offset++];
    s->nodes[node] = (struct mcfs_alloc_node){offset, size, NONE, NONE, prev, next, false};
    if (prev != NONE)
        s->nodes[prev].neighbour_next = node;
    if (next != NONE)
        s->nodes[next].neighbour_prev = node;
    link_bin(s, node);
    return node;
}

static void drop_node(struct mcfs_alloc_state *s, uint32_t node)
{
    s->nodes[node] = (struct mcfs_alloc_node){0, 0, NONE, NONE, NONE, NONE, false};
    s->free_nodes[--s->free_offset] = node;
}

/* ---- making ---- */

static struct mcfs_offset_allocator *no_memory(struct mcfs_offset_allocator *a,
                                               struct mcfs_error *err)
{
    mcfs_offset_allocator_free(a);
    mcfs_fail_errno(err, ENOMEM, "offset allocator");
    return NULL;
}

struct mcfs_offset_allocator *mcfs_offset_allocator_new(uint64_t base, uint64_t capacity,
                                                        unsigned unit_bits, uint32_t max_nodes,
                                                        struct mcfs_error *err)
{
    unsigned bits = unit_bits;
    while (bits < 32 && capacity >> bits > UINT32_MAX)
        bits++;
    if (bits >= 32 || capacity >> bits == 0 || max_nodes > MCFS_ALLOC_NODES_MAX) {
        mcfs_fail(err, MCFS_INVALID_PARAMS, "offset allocator: capacity or nodes out of range");
        return NULL;
    }
    struct mcfs_offset_allocator *a = calloc(1, sizeof(*a));
    if (!a)
        return no_memory(NULL, err);
    struct mcfs_alloc_state *s = &a->s;
    s->base = base;
    s->multiplier_bits = bits;
    s->capacity = capacity;
    s->size = (uint32_t)(capacity >> bits);
    s->max_capacity = max_nodes ? max_nodes : MCFS_ALLOC_NODES_MAX;
    for (unsigned i = 0; i < BINS; i++)
        s->bin_heads[i] = NONE;
    if (!have_nodes(s, 1))
        return no_memory(a, err);
    make_free(s, 0, s->size, NONE, NONE);
    return a;
}

void mcfs_offset_allocator_free(struct mcfs_offset_allocator *a)
{
    if (!a)
        return;
    free(a->s.nodes);
    free(a->s.free_nodes);
    free(a);
}

const struct mcfs_alloc_state *mcfs_offset_allocator_state(const struct mcfs_offset_allocator *a)
{
    return &a->s;
}

/* ---- a state from elsewhere ---- */

static int wrong(struct mcfs_error *err, const char *what)
{
    return mcfs_fail(err, MCFS_INVALID_PARAMS, "offset allocator: %s", what);
}

/* Follows the ranges from the one at offset 0: they must cover all of the capacity, once. */
static int check_ranges(const struct mcfs_alloc_state *s, uint8_t *seen, struct mcfs_error *err)
{
    uint32_t first = NONE, free_units = 0;
    uint64_t at = 0, used = 0;
    for (uint32_t i = s->free_offset; i < s->current_capacity; i++) {
        if (s->free_nodes[i] >= s->current_capacity || seen[s->free_nodes[i]])
            return wrong(err, "a node that is not in use is listed twice, or is none");
        seen[s->free_nodes[i]] = 1;
    }
    for (uint32_t i = 0; i < s->current_capacity && first == NONE; i++)
        if (!seen[i] && s->nodes[i].neighbour_prev == NONE)
            first = i;
    for (uint32_t i = first, prev = NONE; i != NONE; prev = i, i = s->nodes[i].neighbour_next) {
        if (i >= s->current_capacity || seen[i])
            return wrong(err, "its ranges do not follow one another");
        const struct mcfs_alloc_node *n = &s->nodes[i];
        if (n->data_offset != at || n->neighbour_prev != prev || n->data_size == 0 ||
            n->data_size > s->size - at)
            return wrong(err, "ranges overlap or leave room between them");
        seen[i] = n->used ? 1 : 2;
        at += n->data_size;
        used += n->used;
        if (!n->used)
            free_units += n->data_size;
    }
    if (at != s->size || free_units != s->free_storage || used != s->allocated_count)
        return wrong(err, "its ranges are not all there is, or its sums differ from them");
    for (uint32_t i = 0; i < s->current_capacity; i++)
        if (!seen[i])
            return wrong(err, "a node stands for no range");
    return 0;
}

/* Each free range hangs in its bin once, and nothing else does. */
static int check_bins(const struct mcfs_alloc_state *s, uint8_t *seen, struct mcfs_error *err)
{
    uint32_t tops = 0;
    for (uint32_t bin = 0; bin < BINS; bin++) {
        uint32_t head = s->bin_heads[bin];
        bool marked = s->used_bins[bin / LEAVES] >> bin % LEAVES & 1;
        if (marked != (head != NONE))
            return wrong(err, "a bin is marked that is empty, or not one that has ranges");
        tops |= (uint32_t)marked << bin / LEAVES;
        for (uint32_t i = head, prev = NONE; i != NONE; prev = i, i = s->nodes[i].bin_next) {
            if (i >= s->current_capacity || seen[i] != 2 || s->nodes[i].bin_prev != prev ||
                bin_below(s->nodes[i].data_size) != bin)
                return wrong(err, "a bin holds what does not belong there");
            seen[i] = 1;
        }
    }
    if (tops != s->used_bins_top)
        return wrong(err, "its bins are marked wrong");
    for (uint32_t i = 0; i < s->current_capacity; i++)
        if (seen[i] == 2)
            return wrong(err, "a free range hangs in no bin");
    return 0;
}

struct mcfs_offset_allocator *mcfs_offset_allocator_restore(const struct mcfs_alloc_state *state,
                                                            struct mcfs_error *err)
{
    if (state->multiplier_bits >= 32 || state->capacity == 0 || state->max_capacity == 0 ||
        state->max_capacity > MCFS_ALLOC_NODES_MAX ||
        state->current_capacity > state->max_capacity ||
        state->free_offset > state->current_capacity ||
        state->capacity >> state->multiplier_bits != state->size) {
        wrong(err, "its numbers are out of range");
        return NULL;
    }
    size_t n = state->current_capacity;
    _cleanup_free_ uint8_t *seen = calloc(1, n + 1);
    struct mcfs_offset_allocator *a = calloc(1, sizeof(*a));
    if (!seen || !a)
        return no_memory(a, err);
    a->s = *state;
    a->s.nodes = calloc(n + 1, sizeof(*a->s.nodes));
    a->s.free_nodes = calloc(n + 1, sizeof(*a->s.free_nodes));
    if (!a->s.nodes || !a->s.free_nodes)
        return no_memory(a, err);
    if (n) {
        memcpy(a->s.nodes, state->nodes, n * sizeof(*a->s.nodes));
        memcpy(a->s.free_nodes, state->free_nodes, n * sizeof(*a->s.free_nodes));
    }
    if (check_ranges(&a->s, seen, err) || check_bins(&a->s, seen, err)) {
        mcfs_offset_allocator_free(a);
        return NULL;
    }
    return a;
}

/* ---- allocating ---- */

/* Units for so many bytes; NONE: more than there can be. */
static uint32_t units_for(const struct mcfs_alloc_state *s, uint64_t bytes)
{
    if (bytes > s->capacity)
        return NONE;
    uint64_t unit = 1ull << s->multiplier_bits, units = (bytes + unit - 1) >> s->multiplier_bits;
    return units > s->size ? NONE : units ? (uint32_t)units : 1;
}

/* A free range of at least so many units, or NONE.  First among those of about this size, so that
 * what is freed is used again by its like. */
static uint32_t find_range(const struct mcfs_alloc_state *s, uint32_t units)
{
    uint32_t below = bin_below(units), above = bin_above(units);
    uint32_t node = below == above ? NONE : s->bin_heads[below];
    for (unsigned tries = OWN_BIN_TRIES; node != NONE && tries; tries--) {
        if (s->nodes[node].data_size >= units)
            return node;
        node = s->nodes[node].bin_next;
    }
    uint32_t bin = find_bin(s, above);
    return bin == NONE ? NONE : s->bin_heads[bin];
}

/* Takes `units` from offset `skip` on out of a free range; what is left of it stays free.  There
 * are nodes for that. */
static uint32_t carve(struct mcfs_alloc_state *s, uint32_t node, uint32_t skip, uint32_t units)
{
    struct mcfs_alloc_node *n = &s->nodes[node];
    unlink_bin(s, node);
    uint32_t offset = n->data_offset + skip, left = n->data_size - skip - units;
    uint32_t prev = n->neighbour_prev, next = n->neighbour_next;
    n->data_offset = offset;
    n->data_size = units;
    n->used = true;
    if (skip)
        make_free(s, offset - skip, skip, prev, node);
    if (left)
        make_free(s, offset + units, left, node, next);
    return node;
}

static void grant(struct mcfs_alloc_state *s, uint32_t node, uint64_t size,
                  struct mcfs_alloc_range *out)
{
    s->allocated_size += size;
    s->allocated_count++;
    out->node = node;
    out->address = s->base + ((uint64_t)s->nodes[node].data_offset << s->multiplier_bits);
}

bool mcfs_offset_allocate(struct mcfs_offset_allocator *a, uint64_t size,
                          struct mcfs_alloc_range *out)
{
    struct mcfs_alloc_state *s = &a->s;
    uint32_t units = units_for(s, size);
    uint32_t node = units == NONE ? NONE : find_range(s, units);
    if (node == NONE || (s->nodes[node].data_size > units && !have_nodes(s, 1)))
        return false;
    grant(s, carve(s, node, 0, units), size, out);
    return true;
}

/* The free range that covers these units, or NONE.  Ranges are not found by offset otherwise, so
 * this looks through the free ones that are long enough. */
static uint32_t find_covering(const struct mcfs_alloc_state *s, uint32_t offset, uint32_t units)
{
    for (uint32_t bin = find_bin(s, bin_below(units)); bin != NONE; bin = find_bin(s, bin + 1)) {
        for (uint32_t i = s->bin_heads[bin]; i != NONE; i = s->nodes[i].bin_next) {
            const struct mcfs_alloc_node *n = &s->nodes[i];
            if (n->data_offset <= offset &&
                (uint64_t)n->data_offset + n->data_size >= (uint64_t)offset + units)
                return i;
        }
    }
    return NONE;
}

bool mcfs_offset_reserve(struct mcfs_offset_allocator *a, uint64_t address, uint64_t size,
                         struct mcfs_alloc_range *out)
{
    struct mcfs_alloc_state *s = &a->s;
    uint64_t at = address - s->base;
    uint32_t units = units_for(s, size);
    if (address < s->base || at >> s->multiplier_bits << s->multiplier_bits != at ||
        units == NONE || at >> s->multiplier_bits > s->size - units)
        return false;
    uint32_t offset = (uint32_t)(at >> s->multiplier_bits);
    uint32_t node = find_covering(s, offset, units);
    if (node == NONE || !have_nodes(s, 2))
        return false;
    grant(s, carve(s, node, offset - s->nodes[node].data_offset, units), size, out);
    return true;
}

bool mcfs_offset_release(struct mcfs_offset_allocator *a, uint32_t node, uint64_t size)
{
    struct mcfs_alloc_state *s = &a->s;
    if (node >= s->current_capacity || !s->nodes[node].used)
        return false;
    struct mcfs_alloc_node *n = &s->nodes[node];
    uint32_t prev = n->neighbour_prev, next = n->neighbour_next;
    n->used = false;
    if (prev != NONE && !s->nodes[prev].used) {
        unlink_bin(s, prev);
        n->data_offset = s->nodes[prev].data_offset;
        n->data_size += s->nodes[prev].data_size;
        n->neighbour_prev = s->nodes[prev].neighbour_prev;
        if (n->neighbour_prev != NONE)
            s->nodes[n->neighbour_prev].neighbour_next = node;
        drop_node(s, prev);
    }
    if (next != NONE && !s->nodes[next].used) {
        unlink_bin(s, next);
        n->data_size += s->nodes[next].data_size;
        n->neighbour_next = s->nodes[next].neighbour_next;
        if (n->neighbour_next != NONE)
            s->nodes[n->neighbour_next].neighbour_prev = node;
        drop_node(s, next);
    }
    link_bin(s, node);
    s->allocated_size -= MCFS_MIN(size, s->allocated_size);
    s->allocated_count--;
    return true;
}

uint64_t mcfs_offset_largest_free(const struct mcfs_offset_allocator *a)
{
    const struct mcfs_alloc_state *s = &a->s;
    uint32_t longest = 0;
    if (!s->used_bins_top)
        return 0;
    uint32_t top = 31 - (uint32_t)__builtin_clz(s->used_bins_top);
    uint32_t leaf = 31 - (uint32_t)__builtin_clz(s->used_bins[top]);
    for (uint32_t i = s->bin_heads[top * LEAVES + leaf]; i != NONE; i = s->nodes[i].bin_next)
        longest = MCFS_MAX(longest, s->nodes[i].data_size);
    return (uint64_t)longest << s->multiplier_bits;
}
