/* SPDX-License-Identifier: Apache-2.0 */
#include "common/id_table.h"

#include <stdlib.h>

#define SIZE_MIN 16u

/* The slot where the search for a hash begins. */
static uint32_t home_of(const struct mcfs_id_table *t, uint32_t hash)
{
    return (uint32_t)((uint64_t)hash * t->size >> 32);
}

static uint32_t next_to(const struct mcfs_id_table *t, uint32_t i)
{
    return i + 1 == t->size ? 0 : i + 1;
}

/* Slots from one to another, going up and around. */
static uint32_t distance(const struct mcfs_id_table *t, uint32_t from, uint32_t to)
{
    return to >= from ? to - from : to + t->size - from;
}

uint32_t mcfs_id_table_find(const struct mcfs_id_table *t, uint64_t hash, mcfs_id_table_eq_fn eq,
                            const void *key)
{
    uint32_t h = (uint32_t)hash;
    if (t->count == 0)
        return 0;
    for (uint32_t i = home_of(t, h); t->slots[i].id; i = next_to(t, i))
        if (t->slots[i].hash == h && eq(t->slots[i].id, key))
            return t->slots[i].id;
    return 0;
}

static void place(struct mcfs_id_table *t, struct mcfs_id_slot slot)
{
    uint32_t i = home_of(t, slot.hash);
    while (t->slots[i].id)
        i = next_to(t, i);
    t->slots[i] = slot;
}

static int resize(struct mcfs_id_table *t, uint64_t size)
{
    struct mcfs_id_table old = *t;
    struct mcfs_id_slot *slots = size < UINT32_MAX ? calloc(size, sizeof(*slots)) : NULL;
    if (!slots)
        return -1;
    t->slots = slots;
    t->size = (uint32_t)size;
    for (uint32_t i = 0; i < old.size; i++)
        if (old.slots[i].id)
            place(t, old.slots[i]);
    free(old.slots);
    return 0;
}

static bool is_full(const struct mcfs_id_table *t)
{
    return (uint64_t)(t->count + 1) * 5 > (uint64_t)t->size * 4;
}

void mcfs_id_table_reserve(struct mcfs_id_table *t, size_t entries)
{
    uint64_t size = entries < UINT32_MAX ? (uint64_t)entries * 5 / 4 + SIZE_MIN : UINT32_MAX;
    if (size > t->size)
        (void)resize(t, size); /* else it grows as it is filled */
}

int mcfs_id_table_add(struct mcfs_id_table *t, uint64_t hash, uint32_t id)
{
    if (is_full(t) && resize(t, t->size ? (uint64_t)t->size + t->size / 2 : SIZE_MIN))
        return -1;
    place(t, (struct mcfs_id_slot){(uint32_t)hash, id});
    t->count++;
    return 0;
}

void mcfs_id_table_prefetch(const struct mcfs_id_table *t, uint64_t hash)
{
    if (!t->size)
        return;
    /* A search for what is not there looks at five slots when the table is two thirds full. */
    uint32_t home = home_of(t, (uint32_t)hash), last = t->size - 1;
    __builtin_prefetch(&t->slots[home], 1);
    __builtin_prefetch(&t->slots[last - home < 5 ? last : home + 5], 1);
}

/* Where this very entry is; false when it is nowhere. */
static bool slot_of(const struct mcfs_id_table *t, uint64_t hash, uint32_t id, uint32_t *at)
{
    if (t->count == 0)
        return false;
    uint32_t i = home_of(t, (uint32_t)hash);
    while (t->slots[i].id && t->slots[i].id != id)
        i = next_to(t, i);
    *at = i;
    return t->slots[i].id;
}

bool mcfs_id_table_replace(struct mcfs_id_table *t, uint64_t hash, uint32_t old, uint32_t id)
{
    uint32_t i;
    if (!slot_of(t, hash, old, &i))
        return false;
    t->slots[i].id = id;
    return true;
}

bool mcfs_id_table_del(struct mcfs_id_table *t, uint64_t hash, uint32_t id)
{
    uint32_t i;
    if (!slot_of(t, hash, id, &i))
        return false;
    /* Move up those behind the hole that would not be found past it. */
    for (uint32_t j = next_to(t, i); t->slots[j].id; j = next_to(t, j)) {
        uint32_t home = home_of(t, t->slots[j].hash);
        if (distance(t, home, j) >= distance(t, i, j)) {
            t->slots[i] = t->slots[j];
            i = j;
        }
    }
    t->slots[i] = (struct mcfs_id_slot){0};
    t->count--;
    return true;
}

size_t mcfs_id_table_bytes(const struct mcfs_id_table *t)
{
    return t->size * sizeof(*t->slots);
}

void mcfs_id_table_free(struct mcfs_id_table *t)
{
    free(t->slots);
    *t = (struct mcfs_id_table){0};
}
