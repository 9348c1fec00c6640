/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory segments: where replicas go, that many threads are never given one byte twice, what an
 * eviction takes and in which order.
 */
#include "tests/unit/master_memory.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- strategies ---- */

Test(segments, random_reaches_every_segment)
{
    struct directory *d = make(0);
    char key[32];
    unsigned hits[8] = {0};
    for (uint32_t i = 0; i < 8; i++)
        mount(d, i, 1 << 20);
    for (int i = 0; i < 800; i++) {
        struct memory_put m;
        uint64_t version;
        snprintf(key, sizeof(key), "k%d", i);
        cr_assert_eq(begin(d, key, 10, (struct how){0}, &version, &m), 0);
        hits[(m.replicas[0].range.address >> 32) - 1]++;
    }
    for (int i = 0; i < 8; i++) /* 100 each on average: a deviation of 9 times its root */
        cr_assert(hits[i] > 10 && hits[i] < 190, "segment %d: %u of 800", i, hits[i]);
    directory_free(d);
}

Test(segments, free_ratio_first_fills_by_share)
{
    struct directory *d = make(0);
    char key[32];
    mount(d, 0, 1000);
    mount(d, 1, 10000);
    mount(d, 2, 100000);
    for (int i = 0; i < 1000; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        put(d, key, 100, (struct how){.strategy = SEGMENT_FREE_RATIO_FIRST});
        double low = 1, high = 0;
        for (uint32_t k = 0; k < 3; k++) {
            struct segment_info g;
            cr_assert(info_of(d, k, &g));
            double ratio = 1 - (double)g.used / (double)g.size;
            low = ratio < low ? ratio : low;
            high = ratio > high ? ratio : high;
        }
        cr_assert(high - low <= 0.1001, "after %d: %f to %f", i, low, high);
    }
    directory_free(d);
}

Test(segments, replicas_lie_on_different_names)
{
    struct directory *d = make(0);
    struct segment_info g = described(3, 1 << 20);
    bool gone;
    for (uint32_t i = 0; i < 3; i++)
        mount(d, i, 1 << 20);
    memcpy(g.name, "s0", 2); /* a second one of the first's name */
    cr_assert_eq(directory_mount_segment(d, &g, &gone, NULL), 0);
    for (int i = 0; i < 100; i++)
        for (uint32_t n = 1; n <= 4; n++) {
            struct memory_put m;
            uint64_t version;
            char key[32];
            snprintf(key, sizeof(key), "k%d.%u", i, n);
            cr_assert_eq(
                begin(d, key, 10, (struct how){.replicas = n, .strategy = i % 2}, &version, &m), 0);
            cr_assert_eq(m.count, n < 3 ? n : 3);
            unsigned names = 0;
            for (uint32_t k = 0; k < m.count; k++)
                names |= 1u << ((m.replicas[k].range.address >> 32) - 1) % 3;
            cr_assert_eq(__builtin_popcount(names), (int)m.count);
        }
    directory_free(d);
}

/* ---- many threads ---- */

#define SEGMENTS 4
#define THREADS 4
#define ROUNDS 1500
#define UNITS (1 << 16) /* of one segment; a byte each says whose it is */

static atomic_uchar owners[SEGMENTS][UNITS];
static struct directory *shared;

/* Takes or gives back a range; whoever meets another's mark has been given a byte twice. */
static void mark(const struct segment_range *r, unsigned char from, unsigned char to)
{
    for (uint64_t i = 0; i < r->size; i++) {
        unsigned char want = from;
        atomic_uchar *byte = &owners[(r->address >> 32) - 1][(r->address & UINT32_MAX) + i];
        cr_assert(atomic_compare_exchange_strong(byte, &want, to), "byte is %u's", want);
    }
}

static void *putter_main(void *arg)
{
    unsigned number = (unsigned)(uintptr_t)arg, seed = number;
    for (int i = 0; i < ROUNDS; i++) {
        struct memory_put m;
        uint64_t version, size = 1 + (uint64_t)(rand_r(&seed) >> 8) % 100;
        char key[32];
        snprintf(key, sizeof(key), "t%u/k%d", number, (rand_r(&seed) >> 8) % 40);
        unsigned slot = directory_enter(shared);
        if (begin(shared, key, size, (struct how){.upsert = true, .replicas = 2}, &version, &m) ==
            0) {
            /* A put that is under way is nobody else's. */
            for (uint32_t k = 0; k < m.count; k++)
                mark(&m.replicas[k].range, 0, (unsigned char)(number + 1));
            for (uint32_t k = 0; k < m.count; k++)
                mark(&m.replicas[k].range, (unsigned char)(number + 1), 0);
            if (i % 4 == 0)
                directory_put_revoke(shared, version, NODE, NULL);
            else
                end(shared, key, version, size);
        }
        if (i % 5 == 0)
            drop(shared, key, NODE, true);
        directory_leave(shared, slot);
        if (number == 0 && i % 100 == 99) {
            struct evict_counts c;
            directory_evict(shared, 0.1, true, &c);
        }
        if (number == 1 && i % 300 == 299) {
            struct segments *s = directory_segments(shared);
            slot = directory_enter(shared);
            segments_kill(s, segments_find(s, (struct mcfs_id){7, 3}));
            directory_sweep_segments(shared);
            mount(shared, 3, UNITS);
            segments_release_due(s);
            directory_leave(shared, slot);
        }
    }
    return NULL;
}

/* Bytes that are held because puts were under way there when the segment was mounted again. */
static uint64_t held_in_live(struct segments *s)
{
    uint64_t by_number[64] = {0}, bytes = 0;
    segments_add_held(s, 0, by_number, 63);
    for (uint32_t n = 1; n < 64; n++) {
        bool connected;
        if (segments_live(s, n, &connected))
            bytes += by_number[n];
    }
    return bytes;
}

Test(segments, many_threads)
{
    pthread_t threads[THREADS];
    shared = make(0);
    for (uint32_t i = 0; i < SEGMENTS; i++)
        mount(shared, i, i == 3 ? UNITS : 8192);
    for (unsigned i = 0; i < THREADS; i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, putter_main, (void *)(uintptr_t)i), 0);
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    /* Everything else that is used is some object's, and once these have gone nothing is. */
    uint64_t bytes = 0;
    for (unsigned t = 0; t < THREADS; t++)
        for (int k = 0; k < 40; k++) {
            struct object_view v;
            char key[32];
            snprintf(key, sizeof(key), "t%u/k%d", t, k);
            if (!look(shared, key, &v))
                continue;
            for (uint32_t i = 0; i < v.replica_count; i++)
                bytes += v.replicas[i].size;
            drop(shared, key, NODE, true);
        }
    cr_assert_gt(bytes, 0);
    cr_assert_eq(used(shared), held_in_live(directory_segments(shared)));
    directory_free(shared);
}

/* ---- eviction ---- */

static void evict(struct directory *d, double share, bool soft, uint64_t objects)
{
    struct evict_counts c;
    cr_assert_eq(directory_evict(d, share, soft, &c), 0);
    cr_assert_eq(c.objects, objects, "%lu", c.objects);
}

Test(evict, the_longest_unread_go_first)
{
    struct directory *d = make(0);
    struct object_view v;
    char key[32];
    mount(d, 0, 1 << 20);
    for (int i = 0; i < 10; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        put(d, key, 10, (struct how){0});
        usleep(40000); /* more than a lease's unit of time */
    }
    /* A read makes the oldest the newest. */
    cr_assert_eq(directory_get(d, mcfs_slice_str("t"), mcfs_slice_str("k0"), NODE, &v, NULL), 0);
    evict(d, 0.3, true, 3);
    for (int i = 0; i < 10; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        cr_assert_eq(there(d, key), i < 1 || i > 3, "%s", key);
    }
    cr_assert_eq(used(d), 70);
    evict(d, 1, true, 7);
    cr_assert_eq(used(d), 0);
    directory_free(d);
}

Test(evict, leased_and_hard_pinned_stay_and_soft_pins_go_last)
{
    struct directory *d = make(0);
    mount(d, 0, 1 << 20);
    put(d, "soft", 10, (struct how){.soft = true});
    put(d, "hard", 10, (struct how){.hard = true});
    usleep(40000);
    put(d, "plain", 10, (struct how){0});
    evict(d, 0.01, true, 1); /* the youngest, for it is not pinned */
    cr_assert(!there(d, "plain") && there(d, "soft") && there(d, "hard"));
    evict(d, 1, false, 0);
    evict(d, 1, true, 1);
    cr_assert(!there(d, "soft") && there(d, "hard"));
    directory_free(d);

    d = make(3600000); /* PutEnd grants the writer a lease */
    mount(d, 0, 1 << 20);
    put(d, "leased", 10, (struct how){0});
    evict(d, 1, true, 0);
    cr_assert(there(d, "leased"));
    directory_free(d);
}

Test(evict, groups_go_together)
{
    struct directory *d = make(0);
    char key[32];
    mount(d, 0, 1 << 20);
    for (int i = 0; i < 10; i++) {
        snprintf(key, sizeof(key), "g%d", i);
        put(d, key, 10, (struct how){.group = "group"});
    }
    usleep(40000);
    for (int i = 0; i < 10; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        put(d, key, 10, (struct how){0});
    }
    evict(d, 0.1, true, 10); /* two would do, and they are of the group */
    cr_assert(!there(d, "g0") && !there(d, "g9") && there(d, "k0") && there(d, "k9"));
    directory_free(d);

    d = make(0);
    mount(d, 0, 1 << 20);
    put(d, "g1", 10, (struct how){.group = "group"});
    put(d, "g2", 10, (struct how){.group = "group", .hard = true});
    evict(d, 1, true, 0); /* one that may not go holds the others */
    directory_free(d);
}

Test(evict, other_replicas_stay)
{
    struct directory *d = make(0);
    struct object_view v;
    mount(d, 0, 1 << 20);
    put(d, "k", 10, (struct how){0});
    cr_assert(look(d, "k", &v));
    struct mcfs_object o = {.tenant = mcfs_slice_str("t"),
                            .key = mcfs_slice_str("k"),
                            .version = v.version,
                            .size = 10};
    uint8_t generation = directory_inventory_begin(d, NODE);
    cr_assert_eq(directory_inventory_item(d, NODE, generation, &o, NULL), 1);
    cr_assert(look(d, "k", &v) && v.replica_count == 2);
    evict(d, 1, true, 1);
    cr_assert(look(d, "k", &v) && v.replica_count == 1);
    cr_assert_eq(v.replicas[0].type, MCFS_REPLICA_LOCAL_DISK);
    cr_assert_eq(used(d), 0);
    evict(d, 1, true, 0);
    directory_free(d);
}
