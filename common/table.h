/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_COMMON_TABLE_H
#define MCFS_COMMON_TABLE_H

/*
 * A hash table of pointers to entries that hold their own keys: open addressing with linear probing
 * and backward-shift deletion, so that there are no tombstones and a miss ends early.  The hashes
 * lie beside the pointers: a probe, and growing, touch no entry but the one that is looked for.  12
 * bytes per slot, filled to three quarters at most; fewer than 2^32 slots.  The caller locks.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct mcfs_table {
    void **slots;
    uint32_t *hashes; /* in the slots' memory, behind them */
    size_t mask, count;
    uint64_t (*hash)(const void *entry);
};

typedef bool (*mcfs_table_eq_fn)(const void *entry, const void *key);

#define MCFS_TABLE_INIT(hash_fn)                                                                   \
    {                                                                                              \
        NULL, NULL, 0, 0, (hash_fn)                                                                \
    }

/* The entry with this hash for which eq(entry, key) holds, or NULL. */
void *mcfs_table_find(const struct mcfs_table *t, uint64_t hash, mcfs_table_eq_fn eq,
                      const void *key);

/* Adds an entry (the caller knows that its key is not there).  Returns 0, or -1 without memory. */
int mcfs_table_add(struct mcfs_table *t, void *entry);

/* Takes out this very entry; returns whether it was there. */
bool mcfs_table_del(struct mcfs_table *t, const void *entry);

/* Walks: `for (size_t i = 0; (e = mcfs_table_next(t, &i));)`.  No change is allowed meanwhile. */
void *mcfs_table_next(const struct mcfs_table *t, size_t *i);

/* Frees the slots, not the entries. */
void mcfs_table_free(struct mcfs_table *t);

#endif
