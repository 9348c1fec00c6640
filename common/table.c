/* SPDX-License-Identifier: Apache-2.0 */
#include "common/table.h"

#include <stdlib.h>

#define SIZE_MIN 16u
#define SIZE_LIMIT ((size_t)1 << 31)

/* As it is stored: 0 stands for an empty slot. */
static uint32_t stored(uint64_t hash)
{
    return (uint32_t)hash ? (uint32_t)hash : 1;
}

void *mcfs_table_find(const struct mcfs_table *t, uint64_t hash, mcfs_table_eq_fn eq,
                      const void *key)
{
    uint32_t h = stored(hash);
    if (t->count == 0)
        return NULL;
    for (size_t i = h & t->mask; t->hashes[i]; i = (i + 1) & t->mask)
        if (t->hashes[i] == h && eq(t->slots[i], key))
            return t->slots[i];
    return NULL;
}

static void place(struct mcfs_table *t, void *entry, uint32_t hash)
{
    size_t i = hash & t->mask;
    while (t->hashes[i])
        i = (i + 1) & t->mask;
    t->slots[i] = entry;
    t->hashes[i] = hash;
}

static int resize(struct mcfs_table *t, size_t size)
{
    struct mcfs_table old = *t;
    void **slots = calloc(size, sizeof(*t->slots) + sizeof(*t->hashes));
    if (!slots)
        return -1;
    t->slots = slots;
    t->hashes = (uint32_t *)(void *)(slots + size);
    t->mask = size - 1;
    for (size_t i = 0; old.slots && i <= old.mask; i++)
        if (old.hashes[i])
            place(t, old.slots[i], old.hashes[i]);
    free(old.slots);
    return 0;
}

static bool is_full(const struct mcfs_table *t)
{
    return !t->slots || (t->count + 1) * 4 > (t->mask + 1) * 3;
}

int mcfs_table_add(struct mcfs_table *t, void *entry)
{
    if (is_full(t) && resize(t, t->slots ? (t->mask + 1) * 2 : SIZE_MIN))
        return -1;
    place(t, entry, stored(t->hash(entry)));
    t->count++;
    return 0;
}

/* The slot of this very entry, or NULL. */
static void **slot_of(const struct mcfs_table *t, const void *entry)
{
    if (t->count == 0)
        return NULL;
    size_t i = stored(t->hash(entry)) & t->mask;
    while (t->slots[i] && t->slots[i] != entry)
        i = (i + 1) & t->mask;
    return t->slots[i] ? &t->slots[i] : NULL;
}

bool mcfs_table_del(struct mcfs_table *t, const void *entry)
{
    void **slot = slot_of(t, entry);
    if (!slot)
        return false;
    size_t i = (size_t)(slot - t->slots);
    /* Move up those behind the hole that would not be found past it. */
    for (size_t j = (i + 1) & t->mask; t->hashes[j]; j = (j + 1) & t->mask) {
        size_t home = t->hashes[j] & t->mask;
        if (((j - home) & t->mask) >= ((j - i) & t->mask)) {
            t->slots[i] = t->slots[j];
            t->hashes[i] = t->hashes[j];
            i = j;
        }
    }
    t->slots[i] = NULL;
    t->hashes[i] = 0;
    t->count--;
    return true;
}

void *mcfs_table_next(const struct mcfs_table *t, size_t *i)
{
    while (t->slots && *i <= t->mask) {
        void *e = t->slots[(*i)++];
        if (e)
            return e;
    }
    return NULL;
}

void mcfs_table_free(struct mcfs_table *t)
{
    free(t->slots);
    t->slots = NULL;
    t->hashes = NULL;
    t->mask = t->count = 0;
}
