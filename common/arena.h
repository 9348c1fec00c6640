/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_COMMON_ARENA_H
#define MCFS_COMMON_ARENA_H

/*
 * Memory for very many small things: one contiguous reservation, used from its start in 2 MiB steps
 * that ask for huge pages, so that page faults are few and page tables small, which a fork copies.
 * Blocks are named by 32-bit numbers (units from the base), and come from slabs of one size class
 * each; a slab whose blocks are all free goes back to the pool, and a 2 MiB step whose slabs are
 * all free goes back to the kernel.
 *
 * Slabs belong to one of `stripes` independent allocators, so that threads working on different
 * things rarely meet; who asks for a block picks the stripe.
 */

#include <mooncakefs/error.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct arena;

struct arena_config {
    uint64_t reserve_bytes; /* address space, not memory */
    uint32_t unit_bytes;    /* a block's number counts these; power of two */
    uint32_t slab_bytes;    /* power of two, at most 2 MiB */
    uint32_t stripes;       /* at most 256 */
    bool lazy; /* the kernel takes free memory back when it is short of it, not at once:
                  who needs it again before that has it without a page fault */
};

struct arena *arena_new(const struct arena_config *config, struct mcfs_error *err);
void arena_free_all(struct arena *a);

/* A block of at least `bytes`, not cleared; 0 when the reservation or the machine's memory is used
 * up. */
uint32_t arena_alloc(struct arena *a, uint32_t stripe, uint32_t bytes);

/* Gives a block back. */
void arena_free(struct arena *a, uint32_t block);

/* Bytes that a block has, at least those that were asked for. */
uint32_t arena_block_bytes(const struct arena *a, uint32_t block);

/* Start of the reservation: block n lies at base + n * unit_bytes. */
void *arena_base(const struct arena *a);

/* Whether an address lies in the reservation. */
bool arena_holds(const struct arena *a, const void *p);

/* Bytes of the reservation that have been touched and not given back. */
uint64_t arena_resident_bytes(const struct arena *a);

/* Puts huge pages together again that copy-on-write split (MADV_COLLAPSE, one step after the
 * other); for a background thread. */
void arena_collapse(struct arena *a);

#endif
