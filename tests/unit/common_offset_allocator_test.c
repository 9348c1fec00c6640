/* SPDX-License-Identifier: Apache-2.0 */
#include "common/cleanup.h"
#include "common/cursor.h"
#include "common/file.h"
#include "common/offset_allocator.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct held {
    uint64_t size;
    struct mcfs_alloc_range range;
};

static struct mcfs_offset_allocator *make(uint64_t base, uint64_t capacity, unsigned unit_bits,
                                          uint32_t max_nodes)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct mcfs_offset_allocator *a =
        mcfs_offset_allocator_new(base, capacity, unit_bits, max_nodes, &err);
    cr_assert_not_null(a, "%s", err.msg);
    return a;
}

/* The state is one that restore takes: that checks all there is to check. */
static void check(const struct mcfs_offset_allocator *a)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct mcfs_offset_allocator *again =
        mcfs_offset_allocator_restore(mcfs_offset_allocator_state(a), &err);
    cr_assert_not_null(again, "%s", err.msg);
    mcfs_offset_allocator_free(again);
}

static void check_is_empty(const struct mcfs_offset_allocator *a)
{
    const struct mcfs_alloc_state *s = mcfs_offset_allocator_state(a);
    cr_assert_eq(s->allocated_size, 0);
    cr_assert_eq(s->allocated_count, 0);
    cr_assert_eq(s->free_storage, s->size);
    cr_assert_eq(s->free_offset, 1, "all has merged into one range");
    cr_assert_eq(mcfs_offset_largest_free(a), (uint64_t)s->size << s->multiplier_bits);
}

static uint64_t random_size(void)
{
    return (uint64_t)rand() % (rand() % 4 ? 3000u : 200000u);
}

/* One byte of `map` for each unit of the capacity. */
static void mark(uint8_t *map, const struct mcfs_alloc_state *s, const struct held *h, uint8_t was)
{
    uint64_t unit = 1ull << s->multiplier_bits, from = (h->range.address - s->base) / unit;
    uint64_t units = h->size ? (h->size + unit - 1) / unit : 1;
    cr_assert(from + units <= s->size);
    for (uint64_t i = from; i < from + units; i++) {
        cr_assert_eq(map[i], was, "two ranges share a unit");
        map[i] = !was;
    }
}

static void random_operations(unsigned seed, uint64_t base, uint64_t capacity, unsigned bits)
{
    struct mcfs_offset_allocator *a = make(base, capacity, bits, 0);
    const struct mcfs_alloc_state *s = mcfs_offset_allocator_state(a);
    uint8_t *map = calloc(1, s->size);
    struct held held[600] = {0};
    size_t count = 0;
    uint64_t asked = 0;
    srand(seed);
    for (int step = 0; step < 6000; step++) {
        if (count < 600 && rand() % 5 < 3) {
            struct held *h = &held[count];
            h->size = random_size();
            if (!mcfs_offset_allocate(a, h->size, &h->range)) {
                cr_assert_lt(mcfs_offset_largest_free(a), h->size * 9 / 8 + (1u << bits),
                             "there was room");
                continue;
            }
            mark(map, s, h, 0);
            asked += h->size;
            count++;
        } else if (count) {
            size_t i = (size_t)rand() % count;
            mark(map, s, &held[i], 1);
            asked -= held[i].size;
            cr_assert(mcfs_offset_release(a, held[i].range.node, held[i].size));
            held[i] = held[--count];
        }
        cr_assert_eq(s->allocated_count, count);
        cr_assert_eq(s->allocated_size, asked);
        if (step % 100 == 0)
            check(a);
    }
    while (count) {
        count--;
        cr_assert(mcfs_offset_release(a, held[count].range.node, held[count].size));
    }
    check(a);
    check_is_empty(a);
    free(map);
    mcfs_offset_allocator_free(a);
}

Test(offset_allocator, random_operations_against_a_map)
{
    for (unsigned seed = 1; seed <= 8; seed++)
        random_operations(seed, seed % 2 ? 0 : 0x7f0000000000, 3u << 20, seed % 3 * 4);
}

/* As many objects of one size as would fit side by side, to within 1 %: also in the holes that
 * others of the size leave. */
static void fill(struct mcfs_offset_allocator *a, uint64_t size, struct held *held, size_t cap,
                 size_t at_least)
{
    size_t n = 0;
    while (n < cap && mcfs_offset_allocate(a, size, &held[n].range))
        n++;
    cr_assert_geq(n, at_least, "%zu of %zu bytes", n, (size_t)size);
    for (size_t i = 0; i < n; i += 2)
        cr_assert(mcfs_offset_release(a, held[i].range.node, size));
    for (size_t i = 0; i < n; i += 2)
        cr_assert(mcfs_offset_allocate(a, size, &held[i].range), "a hole is used again");
    struct mcfs_alloc_range none;
    if (n < cap)
        cr_assert_not(mcfs_offset_allocate(a, size, &none));
    for (size_t i = 0; i < n; i++)
        cr_assert(mcfs_offset_release(a, held[i].range.node, size));
    check_is_empty(a);
}

Test(offset_allocator, uniform_sizes_waste_less_than_one_percent)
{
    static const uint64_t sizes[] = {4096, 4097, 5000, 65536, 70000, 100001, 123457};
    static struct held held[20000];
    struct mcfs_offset_allocator *a = make(0, 64u << 20, 4, 0);
    for (size_t i = 0; i < MCFS_ARRAY_SIZE(sizes); i++)
        fill(a, sizes[i], held, MCFS_ARRAY_SIZE(held), (size_t)((64u << 20) / sizes[i]) * 99 / 100);
    mcfs_offset_allocator_free(a);
}

Test(offset_allocator, bounds)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct mcfs_alloc_range r, q;
    cr_assert_null(mcfs_offset_allocator_new(0, 0, 0, 0, &err));
    cr_assert_eq(err.code, MCFS_INVALID_PARAMS);
    cr_assert_null(mcfs_offset_allocator_new(0, 1 << 20, 0, MCFS_ALLOC_NODES_MAX + 1, NULL));
    cr_assert_null(mcfs_offset_allocator_new(0, UINT64_MAX, 0, 0, NULL));

    struct mcfs_offset_allocator *a = make(1 << 12, 1000, 0, 4);
    cr_assert_not(mcfs_offset_allocate(a, 1001, &r));
    cr_assert_not(mcfs_offset_allocate(a, UINT64_MAX, &r));
    cr_assert(mcfs_offset_allocate(a, 0, &r), "a unit");
    cr_assert_eq(r.address, 1 << 12);
    cr_assert(mcfs_offset_allocate(a, 10, &q));
    cr_assert(mcfs_offset_allocate(a, 10, &q));
    cr_assert_not(mcfs_offset_allocate(a, 10, &q), "no node is left for the rest");
    cr_assert_not(mcfs_offset_release(a, 4, 10), "no such node");
    cr_assert(mcfs_offset_release(a, q.node, 10));
    cr_assert_not(mcfs_offset_release(a, q.node, 10), "it is free already");
    cr_assert_not(mcfs_offset_release(a, UINT32_MAX, 10));
    check(a);
    mcfs_offset_allocator_free(a);

    /* 1 TiB in units of 256 bytes. */
    a = make(0, 1ull << 40, 0, 0);
    cr_assert_eq(mcfs_offset_allocator_state(a)->multiplier_bits, 9);
    cr_assert(mcfs_offset_allocate(a, 3ull << 38, &r));
    cr_assert(mcfs_offset_allocate(a, 1, &q));
    cr_assert_eq(q.address, 3ull << 38);
    mcfs_offset_allocator_free(a);
}

Test(offset_allocator, reserves_what_is_known_to_be_in_use)
{
    struct mcfs_offset_allocator *a = make(4096, 1 << 20, 4, 0);
    struct mcfs_alloc_range r, q, whole;
    cr_assert(mcfs_offset_reserve(a, 4096 + 1600, 100, &r));
    cr_assert_eq(r.address, 4096 + 1600);
    cr_assert_not(mcfs_offset_reserve(a, 4096 + 1600, 100, &q));
    cr_assert_not(mcfs_offset_reserve(a, 4096 + 1696, 10, &q), "its last unit");
    cr_assert_not(mcfs_offset_reserve(a, 4096 + 1500, 1000, &q), "not on a unit");
    cr_assert_not(mcfs_offset_reserve(a, 4000, 10, &q), "before the base");
    cr_assert_not(mcfs_offset_reserve(a, 4096 + (1 << 20), 10, &q), "behind the end");
    cr_assert(mcfs_offset_reserve(a, 4096, 1600, &q), "what lies before it");
    cr_assert(mcfs_offset_reserve(a, 4096 + 1712, (1 << 20) - 1712, &whole), "and behind it");
    cr_assert_eq(mcfs_offset_largest_free(a), 0);
    check(a);
    cr_assert(mcfs_offset_release(a, r.node, 100));
    cr_assert(mcfs_offset_release(a, q.node, 1600));
    cr_assert(mcfs_offset_release(a, whole.node, (1 << 20) - 1712));
    check_is_empty(a);
    mcfs_offset_allocator_free(a);
}

/* ---- states that Mooncake wrote ---- */

/* The allocator_state of a kv_cache.meta: {1: version, 2: the state, ...}. */
static void read_golden(const char *name, struct mcfs_alloc_state *s)
{
    char path[256], *bytes;
    snprintf(path, sizeof(path), "%s/%s/kv_cache.meta", TEST_DATA_DIR, name);
    ssize_t len = mcfs_read_file_alloc(path, 64 << 20, &bytes, NULL);
    cr_assert_gt(len, 8);
    struct mcfs_cursor c = mcfs_cursor(bytes, (size_t)len);
    cr_assert_eq(memcmp(mcfs_cursor_bytes(&c, 3), "\x08\x03\x12", 3), 0);
    while (mcfs_cursor_u8(&c) & 0x80)
        ;
    *s = (struct mcfs_alloc_state){0};
    s->base = mcfs_cursor_u64(&c);
    s->multiplier_bits = mcfs_cursor_u64(&c);
    s->capacity = mcfs_cursor_u64(&c);
    s->allocated_size = mcfs_cursor_u64(&c);
    s->allocated_count = mcfs_cursor_u64(&c);
    s->size = mcfs_cursor_u32(&c);
    s->current_capacity = mcfs_cursor_u32(&c);
    s->max_capacity = mcfs_cursor_u32(&c);
    s->free_storage = mcfs_cursor_u32(&c);
    s->used_bins_top = mcfs_cursor_u32(&c);
    memcpy(s->used_bins, mcfs_cursor_bytes(&c, 32), 32);
    for (unsigned i = 0; i < 256; i++)
        s->bin_heads[i] = mcfs_cursor_u32(&c);
    s->free_offset = mcfs_cursor_u32(&c);
    s->nodes = calloc(s->current_capacity, sizeof(*s->nodes));
    s->free_nodes = calloc(s->current_capacity, sizeof(*s->free_nodes));
    for (uint32_t i = 0; i < s->current_capacity; i++) {
        struct mcfs_alloc_node *n = &s->nodes[i];
        n->data_offset = mcfs_cursor_u32(&c);
        n->data_size = mcfs_cursor_u32(&c);
        n->bin_prev = mcfs_cursor_u32(&c);
        n->bin_next = mcfs_cursor_u32(&c);
        n->neighbour_prev = mcfs_cursor_u32(&c);
        n->neighbour_next = mcfs_cursor_u32(&c);
        n->used = mcfs_cursor_u8(&c);
        mcfs_cursor_bytes(&c, 3);
    }
    for (uint32_t i = 0; i < s->current_capacity; i++)
        s->free_nodes[i] = mcfs_cursor_u32(&c);
    cr_assert_not(c.failed);
    free(bytes);
}

Test(offset_allocator, goes_on_from_what_mooncake_wrote)
{
    static const char *const names[] = {"offset_strict", "offset_relaxed", "offset_crash"};
    for (size_t k = 0; k < MCFS_ARRAY_SIZE(names); k++) {
        struct mcfs_alloc_state s;
        struct mcfs_error err = MCFS_ERROR_INIT;
        struct mcfs_alloc_range r;
        read_golden(names[k], &s);
        struct mcfs_offset_allocator *a = mcfs_offset_allocator_restore(&s, &err);
        cr_assert_not_null(a, "%s: %s", names[k], err.msg);
        uint64_t count = s.allocated_count;
        cr_assert(mcfs_offset_allocate(a, 1000, &r));
        check(a);
        for (uint32_t i = 0; i < s.current_capacity; i++)
            if (s.nodes[i].used && s.nodes[i].data_size)
                cr_assert(mcfs_offset_release(a, i, 0));
        cr_assert_eq(mcfs_offset_allocator_state(a)->allocated_count, 1);
        cr_assert_gt(count, 0);
        check(a);
        mcfs_offset_allocator_free(a);
        free(s.nodes);
        free(s.free_nodes);
    }
}

/* Each number of a state changed, in turn: refused, unless it contradicts nothing. */
Test(offset_allocator, a_damaged_state_is_refused)
{
    struct mcfs_offset_allocator *a = make(0, 1 << 16, 0, 300);
    struct mcfs_alloc_range r[20];
    for (unsigned i = 0; i < 20; i++)
        cr_assert(mcfs_offset_allocate(a, 100 + i * 40, &r[i]));
    for (unsigned i = 0; i < 20; i += 3)
        cr_assert(mcfs_offset_release(a, r[i].node, 100 + i * 40));
    struct mcfs_alloc_state s = *mcfs_offset_allocator_state(a);
    unsigned taken = 0, refused = 0;
    for (uint32_t i = 0; i < 30; i++) {
        uint32_t *numbers = &s.nodes[i].data_offset;
        for (unsigned k = 0; k < 6; k++) {
            for (unsigned bit = 0; bit < 32; bit++) {
                numbers[k] ^= 1u << bit;
                struct mcfs_offset_allocator *b = mcfs_offset_allocator_restore(&s, NULL);
                taken += b != NULL;
                refused += !b;
                mcfs_offset_allocator_free(b);
                numbers[k] ^= 1u << bit;
            }
        }
        s.nodes[i].used = !s.nodes[i].used;
        cr_assert(s.free_nodes[s.free_offset] <= i || !mcfs_offset_allocator_restore(&s, NULL));
        s.nodes[i].used = !s.nodes[i].used;
    }
    cr_assert_gt(refused, 0);
    cr_assert_gt(taken, 0, "links of used and unused nodes mean nothing");
    for (unsigned i = 0; i < 256; i++) {
        s.bin_heads[i] ^= 1;
        cr_assert_null(mcfs_offset_allocator_restore(&s, NULL));
        s.bin_heads[i] ^= 1;
        s.used_bins[i / 8] ^= (uint8_t)(1u << i % 8);
        cr_assert_null(mcfs_offset_allocator_restore(&s, NULL));
        s.used_bins[i / 8] ^= (uint8_t)(1u << i % 8);
    }
    s.free_offset--;
    cr_assert_null(mcfs_offset_allocator_restore(&s, NULL));
    s.free_offset++;
    check(a);
    mcfs_offset_allocator_free(a);
}
