/* SPDX-License-Identifier: Apache-2.0 */
/* Memory by numbers: blocks do not overlap, and come back. */
#include "common/arena.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define STEP (2u << 20)

static struct arena *make(uint32_t stripes)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct arena *a = arena_new(&(struct arena_config){1ull << 30, 8, 16 << 10, stripes}, &err);
    cr_assert(a, "%s", err.msg);
    return a;
}

static unsigned char *at(struct arena *a, uint32_t block)
{
    return (unsigned char *)arena_base(a) + (uint64_t)block * 8;
}

struct block {
    uint32_t number, bytes;
    unsigned char fill;
};

static bool is_filled(struct arena *a, const struct block *b)
{
    for (uint32_t i = 0; i < b->bytes; i++)
        if (at(a, b->number)[i] != b->fill)
            return false;
    return true;
}

/* Takes and gives blocks of many sizes, and looks whether what was written stays. */
static void churn(struct arena *a, unsigned seed, uint32_t stripe)
{
    static const uint32_t most = 6000;
    struct block *blocks = calloc(1000, sizeof(*blocks));
    for (int step = 0; step < 30000; step++) {
        struct block *b = &blocks[(unsigned)rand_r(&seed) % 1000];
        if (b->number) {
            cr_assert(is_filled(a, b));
            arena_free(a, b->number);
            b->number = 0;
            continue;
        }
        uint32_t bytes = 1 + (uint32_t)rand_r(&seed) % (step % 2 ? most : 100);
        *b = (struct block){arena_alloc(a, stripe, bytes), bytes, (unsigned char)rand_r(&seed)};
        cr_assert(b->number);
        cr_assert_geq(arena_block_bytes(a, b->number), bytes);
        memset(at(a, b->number), b->fill, bytes);
    }
    for (int i = 0; i < 1000; i++)
        if (blocks[i].number) {
            cr_assert(is_filled(a, &blocks[i]));
            arena_free(a, blocks[i].number);
        }
    free(blocks);
}

Test(arena, keeps_blocks_apart)
{
    struct arena *a = make(1);
    churn(a, 1, 0);
    arena_free_all(a);
}

Test(arena, takes_small_sizes_as_they_are)
{
    struct arena *a = make(1);
    for (uint32_t bytes = 1; bytes <= 512; bytes++)
        cr_assert_eq(arena_block_bytes(a, arena_alloc(a, 0, bytes)), (bytes + 7) / 8 * 8);
    arena_free_all(a);
}

Test(arena, gives_memory_back_to_the_kernel)
{
    enum { BLOCKS = 100000 };
    struct arena *a = make(1);
    uint32_t *blocks = malloc(BLOCKS * sizeof(*blocks));
    cr_assert_eq(arena_resident_bytes(a), 0u);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < BLOCKS; i++)
            cr_assert((blocks[i] = arena_alloc(a, 0, 96)));
        uint64_t full = arena_resident_bytes(a);
        cr_assert_geq(full, BLOCKS * 96u);
        cr_assert_lt(full, BLOCKS * 96u + BLOCKS * 96u / 50 + STEP);
        for (int i = 0; i < BLOCKS; i++)
            arena_free(a, blocks[i]);
        cr_assert_lt(arena_resident_bytes(a), 2u * STEP); /* block 0 is never given back */
    }
    free(blocks);
    arena_free_all(a);
}

/* Number 0 is nobody's, even when there is but one block in a slab. */
Test(arena, begins_with_a_whole_slab)
{
    struct arena *a = make(1);
    uint32_t first = arena_alloc(a, 0, 16 << 10), second = arena_alloc(a, 0, 16 << 10);
    cr_assert_eq(first, (16u << 10) / 8);
    cr_assert_eq(second, first * 2);
    arena_free(a, first);
    cr_assert_eq(arena_alloc(a, 0, 9 << 10), first);
    arena_free_all(a);
}

Test(arena, says_when_it_is_full)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct arena *a = arena_new(&(struct arena_config){STEP, 8, 16 << 10, 1}, &err);
    uint32_t last = 0, block;
    cr_assert_eq(arena_alloc(a, 0, (16 << 10) + 1), 0u); /* more than a slab has */
    while ((block = arena_alloc(a, 0, 8 << 10)))
        last = block;
    cr_assert(last);
    arena_free(a, last);
    cr_assert_eq(arena_alloc(a, 0, 8 << 10), last);
    arena_free_all(a);
}

static void *churn_main(void *arg)
{
    static _Atomic unsigned next;
    unsigned me = next++;
    churn(arg, me + 1, me);
    return NULL;
}

/* More threads than stripes; what one has taken another gives back. */
Test(arena, serves_threads)
{
    struct arena *a = make(2);
    pthread_t threads[4];
    uint32_t blocks[1000];
    for (int i = 0; i < 1000; i++)
        blocks[i] = arena_alloc(a, 0, 64);
    for (int i = 0; i < 4; i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, churn_main, a), 0);
    for (int i = 0; i < 1000; i++)
        arena_free(a, blocks[i]);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    arena_free_all(a);
}
