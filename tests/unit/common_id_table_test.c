/* SPDX-License-Identifier: Apache-2.0 */
#include "common/id_table.h"

#include <criterion/criterion.h>
#include <stdlib.h>

#define NUMBERS 3000u

/* Many collisions, next to each other and around the end of the table. */
static uint64_t crowded(uint32_t id)
{
    return UINT32_MAX - id % 7 * 1000;
}

static uint64_t spread(uint32_t id)
{
    return id * 0x9e3779b97f4a7c15ull >> 13;
}

static bool is_it(uint32_t id, const void *key)
{
    return id == *(const uint32_t *)key;
}

static void compare(uint64_t (*hash)(uint32_t), uint32_t numbers, int steps)
{
    struct mcfs_id_table t = {0};
    bool there[NUMBERS + 1] = {false};
    uint32_t count = 0;
    srand(1);
    for (int step = 0; step < steps; step++) {
        uint32_t id = (uint32_t)rand() % numbers + 1;
        if (there[id])
            cr_assert(mcfs_id_table_del(&t, hash(id), id));
        else
            cr_assert_eq(mcfs_id_table_add(&t, hash(id), id), 0);
        there[id] = !there[id];
        count += there[id] ? 1 : -1;
        cr_assert_eq(t.count, count);
        id = (uint32_t)rand() % numbers + 1;
        cr_assert_eq(mcfs_id_table_find(&t, hash(id), is_it, &id), there[id] ? id : 0u);
        if (!there[id])
            cr_assert_not(mcfs_id_table_del(&t, hash(id), id));
    }
    mcfs_id_table_free(&t);
}

Test(id_table, agrees_with_a_plain_array)
{
    compare(spread, NUMBERS, 100000);
    compare(spread, 20, 5000);
}

Test(id_table, bears_collisions)
{
    compare(crowded, 300, 20000);
}

Test(id_table, replaces_in_place)
{
    struct mcfs_id_table t = {0};
    uint32_t other = 5;
    cr_assert_eq(mcfs_id_table_add(&t, 77, 4), 0);
    cr_assert(mcfs_id_table_replace(&t, 77, 4, other));
    cr_assert_not(mcfs_id_table_replace(&t, 77, 4, other));
    cr_assert_eq(mcfs_id_table_find(&t, 77, is_it, &other), 5u);
    mcfs_id_table_free(&t);
}

Test(id_table, does_not_grow_where_room_was_made)
{
    struct mcfs_id_table t = {0};
    mcfs_id_table_reserve(&t, 1000);
    size_t bytes = mcfs_id_table_bytes(&t);
    for (uint32_t id = 1; id <= 1000; id++)
        cr_assert_eq(mcfs_id_table_add(&t, spread(id), id), 0);
    cr_assert_eq(mcfs_id_table_bytes(&t), bytes);
    cr_assert_lt(bytes, 1000 * 11u);
    mcfs_id_table_reserve(&t, 10); /* has it already */
    for (uint32_t id = 1; id <= 1000; id++)
        cr_assert_eq(mcfs_id_table_find(&t, spread(id), is_it, &id), id);
    mcfs_id_table_free(&t);
}
