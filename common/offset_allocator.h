/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_COMMON_OFFSET_ALLOCATOR_H
#define MCFS_COMMON_OFFSET_ALLOCATOR_H

/*
 * Hands out ranges of a memory segment or of a data file: Mooncake's offset allocator, whose state
 * lies in its snapshots and in kv_cache.meta.  Free ranges hang in 256 bins by size, a small float
 * of five bits of exponent and three of mantissa, found by two levels of bitmaps; ranges that touch
 * are linked, so that a freed one merges with its neighbours.  Both operations take constant time.
 *
 * Where ours departs from Mooncake's: a range is as long as was asked for (rounded up to a unit),
 * not rounded up to its bin, and of the bin that the size itself falls into the first few ranges
 * are tried, too: so objects of one size fill a segment, and fit into each other's holes.  The
 * state stays one that Mooncake goes on with.
 *
 * Thread safety: none; callers lock.
 */

#include <mooncakefs/error.h>

#include <stdbool.h>
#include <stdint.h>

#define MCFS_ALLOC_NONE UINT32_MAX
#define MCFS_ALLOC_NODES_MAX (1u << 24)

/* A range, used or free.  Offset and size are units of 1 << multiplier_bits bytes; links are
 * numbers of nodes or MCFS_ALLOC_NONE. */
struct mcfs_alloc_node {
    uint32_t data_offset, data_size;
    uint32_t bin_prev, bin_next;             /* of a free one: in its bin */
    uint32_t neighbour_prev, neighbour_next; /* the ranges that touch it */
    bool used;
};

/* All there is, as the formats keep it. */
struct mcfs_alloc_state {
    uint64_t base;            /* added to every offset */
    uint64_t multiplier_bits; /* a unit is 1 << these bytes; < 32 */
    uint64_t capacity;        /* bytes */
    uint64_t allocated_size;  /* bytes asked for by what is allocated */
    uint64_t allocated_count;
    uint32_t size;                           /* units */
    uint32_t current_capacity, max_capacity; /* nodes there are, and may be */
    uint32_t free_storage;                   /* units */
    uint32_t used_bins_top;                  /* bit t: used_bins[t] is not 0 */
    uint8_t used_bins[32];                   /* bit l: bin 8t + l is not empty */
    uint32_t bin_heads[256];
    struct mcfs_alloc_node *nodes; /* current_capacity */
    uint32_t *free_nodes; /* as many; from free_offset on: the numbers of nodes not in use */
    uint32_t free_offset;
};

/* An allocated range, as its owner keeps it. */
struct mcfs_alloc_range {
    uint64_t address; /* base and offset, bytes */
    uint32_t node;    /* what free takes */
};

struct mcfs_offset_allocator;

/* An empty one over `capacity` bytes from base on: the unit is the smallest with which the capacity
 * fits 32 bits, `unit_bits` at least.  Nodes are made as they are needed, up to max_nodes (0: as
 * many as there may be).  NULL: INVALID_PARAMS, or without memory. */
struct mcfs_offset_allocator *mcfs_offset_allocator_new(uint64_t base, uint64_t capacity,
                                                        unsigned unit_bits, uint32_t max_nodes,
                                                        struct mcfs_error *err);

/* One that goes on from a state that was read somewhere; everything in it is checked
 * (INVALID_PARAMS: it contradicts itself), in time linear in its nodes.  The arrays are copied. */
struct mcfs_offset_allocator *mcfs_offset_allocator_restore(const struct mcfs_alloc_state *state,
                                                            struct mcfs_error *err);
void mcfs_offset_allocator_free(struct mcfs_offset_allocator *a);

/* Its state, valid until the next call that changes it. */
const struct mcfs_alloc_state *mcfs_offset_allocator_state(const struct mcfs_offset_allocator *a);

/* Allocates `size` bytes (0 takes a unit); false when no free range is long enough. */
bool mcfs_offset_allocate(struct mcfs_offset_allocator *a, uint64_t size,
                          struct mcfs_alloc_range *out);

/* Allocates exactly these bytes: for a range that is known to be in use.  False when any of them
 * is used already or lies outside. */
bool mcfs_offset_reserve(struct mcfs_offset_allocator *a, uint64_t address, uint64_t size,
                         struct mcfs_alloc_range *out);

/* Gives back a range of which `size` bytes had been asked for.  False, and nothing is changed, when
 * the node is not an allocated one. */
bool mcfs_offset_release(struct mcfs_offset_allocator *a, uint32_t node, uint64_t size);

/* The longest range that could be allocated now, bytes. */
uint64_t mcfs_offset_largest_free(const struct mcfs_offset_allocator *a);

#endif
