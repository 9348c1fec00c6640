/* SPDX-License-Identifier: Apache-2.0 */
/* The store's half of eviction: order, holding back, taking back, and readers in flight. */
#include "backends/backends.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TENANT MCFS_SLICE_LITERAL("default")
#define SIZE 5000

static const struct mcfs_backend_ops *ops;
static uint64_t room; /* that an object takes in the layout */
static char dir[64];

static void setup(const char *layout, uint64_t object_room)
{
    ops = mcfs_backend_find(layout);
    room = object_room;
    strcpy(dir, "/tmp/mcfs-evict-XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
}

static void setup_bucket(void)
{
    setup("bucket_storage_backend", SIZE + 10); /* "default", 0x00, "kN" before the value */
}

static void setup_offset(void)
{
    setup("offset_allocator_storage_backend", 3 * 4096); /* head and value, in whole blocks */
}

static void setup_files(void)
{
    setup("file_per_key_storage_backend", SIZE);
}

static void teardown(void)
{
    char command[128];
    snprintf(command, sizeof(command), "rm -rf %s", dir);
    cr_assert_eq(system(command), 0);
}

TestSuite(evict_bucket, .init = setup_bucket, .fini = teardown, .timeout = 60);
TestSuite(evict_offset, .init = setup_offset, .fini = teardown, .timeout = 60);
TestSuite(evict_files, .init = setup_files, .fini = teardown, .timeout = 60);

/* A test of every layout. */
#define EACH_LAYOUT(name)                                                                          \
    static void name(void);                                                                        \
    Test(evict_bucket, name)                                                                       \
    {                                                                                              \
        name();                                                                                    \
    }                                                                                              \
    Test(evict_offset, name)                                                                       \
    {                                                                                              \
        name();                                                                                    \
    }                                                                                              \
    Test(evict_files, name)                                                                        \
    {                                                                                              \
        name();                                                                                    \
    }                                                                                              \
    static void name(void)

static struct mcfs_backend *open_store(const char *policy)
{
    struct mcfs_backend_config config = {
        .dir = dir, .bucket_keys_limit = 3, .eviction_policy = policy};
    struct mcfs_backend_recovery found;
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct mcfs_backend *b = ops->open(&config, &found, &err);
    cr_assert_not_null(b, "%s", err.msg);
    ops = b->ops; /* for writing, a layout may have another table */
    return b;
}

static void put(struct mcfs_backend *b, uint64_t version)
{
    char key[16], data[SIZE];
    snprintf(key, sizeof(key), "k%d", (int)version);
    memset(data, 'a' + (int)version, sizeof(data));
    struct mcfs_backend_put item = {
        .object = {.tenant = TENANT, .key = mcfs_slice_str(key), .version = version, .size = SIZE},
        .data = data};
    cr_assert_eq(ops->put(b, &item, 1), 0, "%s", item.err.msg);
}

static struct mcfs_backend *filled(const char *policy)
{
    struct mcfs_backend *b = open_store(policy);
    for (uint64_t v = 9; v > 0; v--)
        put(b, v);
    return b;
}

static struct mcfs_backend_reader *reader(struct mcfs_backend *b, uint64_t version)
{
    char key[16];
    struct mcfs_error err = MCFS_ERROR_INIT;
    snprintf(key, sizeof(key), "k%d", (int)version);
    struct mcfs_backend_reader *r = ops->reader_open(b, TENANT, mcfs_slice_str(key), version, &err);
    cr_assert(r || err.code == MCFS_REPLICA_IS_GONE, "%s", err.msg);
    return r;
}

static bool has(struct mcfs_backend *b, uint64_t version)
{
    struct mcfs_backend_reader *r = reader(b, version);
    if (r)
        ops->reader_close(r);
    return r != NULL;
}

static void is_whole(struct mcfs_backend_reader *r, uint64_t version)
{
    char got[SIZE + 1], want[SIZE];
    memset(want, 'a' + (int)version, sizeof(want));
    cr_assert_eq(ops->reader_read(r, got, sizeof(got), 0, NULL), SIZE);
    cr_assert_eq(memcmp(got, want, SIZE), 0);
}

/* Chooses and holds back `want` victims. */
static size_t begin(struct mcfs_backend *b, struct mcfs_backend_cursor *at,
                    struct mcfs_backend_victim *v, size_t want)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    int64_t n = ops->evict_choose(b, at, (want - 1) * room + 1, v, 16, &err);
    cr_assert_geq(n, 0, "%s", err.msg);
    cr_assert_eq(ops->evict_hold(b, v, (size_t)n), (size_t)n);
    return (size_t)n;
}

EACH_LAYOUT(fifo_takes_the_oldest_put_and_frees_it)
{
    struct mcfs_backend *b = filled("fifo");
    struct mcfs_backend_victim v[16];
    struct mcfs_backend_cursor at = {0};
    cr_assert(has(b, 1)); /* opening changes nothing for fifo */
    cr_assert_eq(begin(b, &at, v, 3), 3);
    for (uint64_t i = 0; i < 3; i++) {
        cr_assert_eq(v[i].version, i + 1);
        cr_assert_not(has(b, i + 1));
        v[i].gone = true;
    }
    cr_assert(has(b, 4));
    cr_assert_eq(ops->evict_end(b, v, 3), 0);
    struct mcfs_backend_stats stats;
    ops->stats(b, &stats);
    cr_assert_eq(stats.objects, 6);
    cr_assert_eq(stats.evictions, 3);
    cr_assert_eq(stats.evicted_bytes, 3 * SIZE);
    ops->close(b, NULL);
    b = open_store("fifo"); /* and it does not come back */
    for (uint64_t i = 1; i <= 9; i++)
        cr_assert_eq(has(b, i), i > 3);
    ops->close(b, NULL);
}

EACH_LAYOUT(lru_takes_what_was_opened_longest_ago)
{
    struct mcfs_backend *b = filled("lru"); /* put 9 first, 1 last */
    struct mcfs_backend_victim v[16];
    struct mcfs_backend_cursor at = {0};
    cr_assert(has(b, 9));
    cr_assert(has(b, 7));
    cr_assert_eq(begin(b, &at, v, 9), 9);
    static const uint64_t order[] = {8, 6, 5, 4, 3, 2, 1, 9, 7};
    for (int i = 0; i < 9; i++)
        cr_assert_eq(v[i].version, order[i]);
    ops->evict_end(b, v, 9);
    ops->close(b, NULL);
}

EACH_LAYOUT(what_is_refused_is_back_and_is_not_offered_again)
{
    struct mcfs_backend *b = filled("fifo");
    struct mcfs_backend_victim v[16];
    struct mcfs_backend_cursor at = {0};
    cr_assert_eq(begin(b, &at, v, 2), 2);
    v[1].gone = true; /* 1 is pinned, say */
    cr_assert_eq(ops->evict_end(b, v, 2), 0);
    struct mcfs_backend_reader *r = reader(b, 1);
    is_whole(r, 1);
    ops->reader_close(r);
    cr_assert_not(has(b, 2));
    cr_assert_eq(begin(b, &at, v, 1), 1);
    cr_assert_eq(v[0].version, 3);
    ops->evict_end(b, v, 1);
    at = (struct mcfs_backend_cursor){0}; /* another round */
    cr_assert_eq(begin(b, &at, v, 20), 8);
    cr_assert_eq(v[0].version, 1);
    struct mcfs_backend_cursor again = {0};
    struct mcfs_backend_victim none[16];
    cr_assert_eq(begin(b, &again, none, 1), 0); /* all are held back already */
    ops->evict_end(b, v, 8);
    ops->close(b, NULL);
}

EACH_LAYOUT(a_reader_in_flight_finishes)
{
    struct mcfs_backend *b = filled("fifo");
    struct mcfs_backend_victim v[16];
    struct mcfs_backend_cursor at = {0};
    struct mcfs_backend_reader *r = reader(b, 1);
    cr_assert_eq(begin(b, &at, v, 9), 9);
    for (int i = 0; i < 9; i++)
        v[i].gone = true;
    cr_assert_eq(ops->evict_end(b, v, 9), 0);
    ops->sync(b, NULL);
    is_whole(r, 1);
    ops->reader_close(r);
    ops->close(b, NULL);
}

EACH_LAYOUT(none_evicts_nothing)
{
    struct mcfs_backend *b = filled("none");
    struct mcfs_backend_victim v[16];
    struct mcfs_backend_cursor at = {0};
    struct mcfs_error err = MCFS_ERROR_INIT;
    cr_assert_eq(ops->evict_choose(b, &at, 1, v, 16, &err), -1);
    cr_assert_eq(err.code, MCFS_INVALID_PARAMS);
    ops->close(b, NULL);
}

EACH_LAYOUT(choosing_changes_nothing_and_holding_back_is_once)
{
    struct mcfs_backend *b = filled("fifo");
    struct mcfs_backend_victim v[16], w[16];
    struct mcfs_backend_cursor at = {0}, again = {0};
    struct mcfs_error err = MCFS_ERROR_INIT;
    cr_assert_eq(ops->evict_choose(b, &at, 1, v, 16, &err), 1);
    cr_assert(has(b, 1));
    cr_assert_eq(ops->evict_choose(b, &again, 1, w, 16, &err), 1);
    cr_assert_eq(w[0].version, 1);
    cr_assert_eq(ops->evict_hold(b, v, 1), 1);
    cr_assert_not(has(b, 1));
    cr_assert_eq(ops->evict_hold(b, w, 1), 0); /* another has it */
    w[0].gone = true;
    cr_assert_eq(ops->evict_end(b, w, 1), 0);
    cr_assert_eq(ops->evict_end(b, v, 1), 0);
    cr_assert(has(b, 1));
    ops->close(b, NULL);
}

EACH_LAYOUT(at_most_so_many_and_no_more_than_cover_what_is_wanted)
{
    struct mcfs_backend *b = filled("fifo");
    struct mcfs_backend_victim v[16];
    struct mcfs_backend_cursor at = {0};
    struct mcfs_error err = MCFS_ERROR_INIT;
    uint64_t seen = 0;
    for (int64_t n; (n = ops->evict_choose(b, &at, UINT64_MAX, v, 2, &err)) > 0;) {
        cr_assert(n <= 2);
        for (int64_t i = 0; i < n; i++)
            cr_assert_eq(v[i].version, ++seen);
        ops->evict_end(b, v, (size_t)n);
    }
    cr_assert_eq(seen, 9);
    at = (struct mcfs_backend_cursor){0};
    cr_assert_eq(ops->evict_choose(b, &at, 2 * room, v, 16, &err), 2);
    ops->evict_end(b, v, 2);
    cr_assert_eq(ops->evict_choose(b, &at, 2 * room + 1, v, 16, &err), 3);
    cr_assert_eq(v[0].version, 3);
    ops->evict_end(b, v, 3);
    ops->close(b, NULL);
}

/* As of Mooncake's objects: a round visits each once all the same. */
EACH_LAYOUT(versions_that_are_the_same)
{
    struct mcfs_backend *b = open_store("fifo");
    bool seen[40] = {false};
    for (int i = 0; i < 40; i++) {
        char key[16];
        snprintf(key, sizeof(key), "k%02d", i);
        struct mcfs_backend_put item = {
            .object = {.tenant = TENANT, .key = mcfs_slice_str(key), .version = 1, .size = 1},
            .data = "x"};
        cr_assert_eq(ops->put(b, &item, 1), 0);
    }
    struct mcfs_backend_victim v[3];
    struct mcfs_backend_cursor at = {0};
    int count = 0;
    for (int64_t n; (n = ops->evict_choose(b, &at, UINT64_MAX, v, 3, NULL)) > 0;) {
        for (int64_t i = 0; i < n; i++, count++) {
            int key = (v[i].key.data[1] - '0') * 10 + v[i].key.data[2] - '0';
            cr_assert_not(seen[key]);
            seen[key] = true;
        }
        ops->evict_end(b, v, (size_t)n);
    }
    cr_assert_eq(count, 40);
    ops->close(b, NULL);
}

EACH_LAYOUT(after_a_restart_and_a_rename_the_order_is_kept)
{
    struct mcfs_backend *b = filled("lru");
    struct mcfs_backend_victim v[16];
    struct mcfs_backend_cursor at = {0};
    ops->close(b, NULL);
    b = open_store("lru");
    cr_assert(has(b, 2));
    cr_assert_eq(ops->rekey(b, TENANT, mcfs_slice_str("k4"), 4, mcfs_slice_str("new"), 99, NULL),
                 0);
    static const uint64_t order[] = {1, 3, 5, 6, 7, 8, 9, 2, 99};
    cr_assert_eq(ops->evict_choose(b, &at, UINT64_MAX, v, 16, NULL), 9);
    for (int i = 0; i < 9; i++)
        cr_assert_eq(v[i].version, order[i]);
    ops->evict_end(b, v, 9);
    ops->close(b, NULL);
}

/* What was removed while it was held back is gone; a second removal finds nothing to do. */
EACH_LAYOUT(removed_meanwhile)
{
    struct mcfs_backend *b = filled("fifo");
    struct mcfs_backend_victim v[16];
    struct mcfs_backend_cursor at = {0};
    cr_assert_eq(begin(b, &at, v, 2), 2);
    struct mcfs_backend_name name = {.tenant = TENANT, .key = mcfs_slice_str("k1"), .version = 1};
    cr_assert_eq(ops->remove(b, &name, 1), 0);
    v[1].gone = true;
    cr_assert_eq(ops->evict_end(b, v, 2), 0);
    for (uint64_t i = 1; i <= 9; i++)
        cr_assert_eq(has(b, i), i > 2);
    ops->close(b, NULL);
}

static struct mcfs_backend *shared;
static atomic_bool stop;

/* Opens everything, again and again; what can be opened has to be whole. */
static void *read_all(void *arg)
{
    (void)arg;
    while (!atomic_load(&stop))
        for (uint64_t v = 1; v <= 9; v++) {
            struct mcfs_backend_reader *r = reader(shared, v);
            if (!r)
                continue;
            is_whole(r, v);
            ops->reader_close(r);
        }
    return NULL;
}

EACH_LAYOUT(readers_never_see_a_part_while_objects_come_and_go)
{
    shared = filled("lru");
    pthread_t threads[2];
    atomic_store(&stop, false);
    for (int i = 0; i < 2; i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, read_all, NULL), 0);
    uint64_t evicted = 0;
    for (int round = 0; round < 200; round++) {
        struct mcfs_backend_victim v[16];
        struct mcfs_backend_cursor at = {0};
        size_t n = begin(shared, &at, v, 3);
        uint64_t gone = 0;
        for (size_t i = 0; i < n; i++)
            if ((v[i].gone = (round + i) % 2))
                gone |= 1u << v[i].version;
        cr_assert_eq(ops->evict_end(shared, v, n), 0);
        for (uint64_t i = 1; i <= 9; i++)
            if (gone & 1u << i) {
                cr_assert_not(has(shared, i));
                put(shared, i);
                evicted++;
            }
    }
    atomic_store(&stop, true);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    struct mcfs_backend_stats stats;
    ops->stats(shared, &stats);
    cr_assert_eq(stats.objects, 9);
    cr_assert_eq(stats.evictions, evicted);
    cr_assert_gt(evicted, 0);
    for (uint64_t i = 1; i <= 9; i++)
        cr_assert(has(shared, i));
    ops->close(shared, NULL);
}
