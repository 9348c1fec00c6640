/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_COMMON_ID_TABLE_H
#define MCFS_COMMON_ID_TABLE_H

/*
 * As common/table.h, for entries that have 32-bit numbers (common/arena.h): half the memory.  A
 * slot is 8 bytes, hash and number side by side, so that a probe touches one cache line and growing
 * touches no entry.  It grows by half when it is full to four fifths.
 *
 * An entry's place goes up with its hash, so the slots are nearly sorted, and growing reads and
 * writes memory in order.  Only 32 bits of a hash are used.  The caller locks.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct mcfs_id_slot {
    uint32_t hash, id; /* id 0: empty */
};

struct mcfs_id_table {
    struct mcfs_id_slot *slots;
    uint32_t size, count;
};

typedef bool (*mcfs_id_table_eq_fn)(uint32_t id, const void *key);

/* The entry with this hash for which eq(id, key) holds, or 0. */
uint32_t mcfs_id_table_find(const struct mcfs_id_table *t, uint64_t hash, mcfs_id_table_eq_fn eq,
                            const void *key);

/* Makes room for so many entries in all, so that adding them does not grow it; without memory it
 * stays as it is. */
void mcfs_id_table_reserve(struct mcfs_id_table *t, size_t entries);

/* Adds an entry (the caller knows that its key is not there).  Returns 0, or -1 without memory. */
int mcfs_id_table_add(struct mcfs_id_table *t, uint64_t hash, uint32_t id);

/* Has the place of a hash fetched that is looked for or added soon. */
void mcfs_id_table_prefetch(const struct mcfs_id_table *t, uint64_t hash);

/* Takes out this very entry, whose hash this is; returns whether it was there. */
bool mcfs_id_table_del(struct mcfs_id_table *t, uint64_t hash, uint32_t id);

/* Puts an entry in the place of another that has the same hash, which cannot fail; returns whether
 * that one was there. */
bool mcfs_id_table_replace(struct mcfs_id_table *t, uint64_t hash, uint32_t old, uint32_t id);

/* Bytes that it takes. */
size_t mcfs_id_table_bytes(const struct mcfs_id_table *t);

void mcfs_id_table_free(struct mcfs_id_table *t);

#endif
