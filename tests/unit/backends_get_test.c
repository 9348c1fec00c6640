/* SPDX-License-Identifier: Apache-2.0 */
/* Batches: what was put is read, whole and in parts, by every store with each engine; a value that
 * is damaged fails alone. */
#include "backends/backends.h"
#include "backends/io/io.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TENANT MCFS_SLICE_LITERAL("default")
#define COUNT 24
#define LARGEST (5u << 20)

static const char *const engines[] = {"plain", "uring"};
static const char *const stores[] = {"bucket_storage_backend", "offset_allocator_storage_backend",
                                     "file_per_key_storage_backend"};
static const size_t sizes[] = {0, 1, 4095, 70001, 1u << 20, (2u << 20) + 77, LARGEST, 4u << 20};
static char dir[64];

static void setup(void)
{
    strcpy(dir, "/var/tmp/mcfs-get-XXXXXX"); /* a disk: O_DIRECT is wanted */
    cr_assert_not_null(mkdtemp(dir));
}

static void teardown(void)
{
    char command[128];
    snprintf(command, sizeof(command), "rm -rf %s", dir);
    cr_assert_eq(system(command), 0);
}

TestSuite(get, .init = setup, .fini = teardown, .timeout = 200);

static size_t size_of(size_t i)
{
    return sizes[i % (sizeof(sizes) / sizeof(sizes[0]))];
}

static unsigned char byte_at(size_t i, size_t at)
{
    return (unsigned char)(at * 31 + at / 4093 + i * 7);
}

/* Aligned for even i, so that both ways of direct I/O are taken. */
static unsigned char *memory_of(size_t i, unsigned char **base)
{
    *base = aligned_alloc(4096, LARGEST + 8192);
    return *base + (i % 2 ? 13 : 0);
}

static void put_all(struct mcfs_backend *b)
{
    struct mcfs_backend_put items[COUNT + 1];
    unsigned char *base[COUNT + 1];
    static char keys[COUNT + 1][16];
    memset(items, 0, sizeof(items));
    for (size_t i = 0; i <= COUNT; i++) {
        size_t same = i == COUNT ? 6 : i; /* the last one is put twice, by the same batch */
        unsigned char *data = memory_of(i, &base[i]);
        snprintf(keys[i], sizeof(keys[i]), "k%zu", same);
        for (size_t at = 0; at < size_of(same); at++)
            data[at] = byte_at(same, at);
        items[i].object = (struct mcfs_object){.tenant = TENANT,
                                               .key = mcfs_slice_str(keys[i]),
                                               .version = same + 1,
                                               .size = size_of(same),
                                               .attr = {0640, 1, 2, 3}};
        items[i].data = data;
    }
    size_t failed = b->ops->put(b, items, COUNT + 1);
    for (size_t i = 0; failed && i <= COUNT; i++)
        cr_assert_eq(items[i].err.code, MCFS_OK, "%s: %s", b->ops->name, items[i].err.msg);
    cr_assert_eq(failed, 0);
    for (size_t i = 0; i <= COUNT; i++)
        free(base[i]);
}

static void get_all(struct mcfs_backend *b, size_t offset, bool direct)
{
    struct mcfs_backend_get items[COUNT + 1];
    unsigned char *base[COUNT + 1];
    char keys[COUNT + 1][16];
    memset(items, 0, sizeof(items));
    for (size_t i = 0; i <= COUNT; i++) {
        snprintf(keys[i], sizeof(keys[i]), "k%zu", i);
        items[i] = (struct mcfs_backend_get){.tenant = TENANT,
                                             .key = mcfs_slice_str(keys[i]),
                                             .version = i + 1,
                                             .offset = offset,
                                             .buf = memory_of(i, &base[i]),
                                             .len = LARGEST + 100,
                                             .direct = direct};
    }
    cr_assert_eq(b->ops->get(b, items, COUNT + 1), 1); /* the last one was never put */
    cr_assert_eq(items[COUNT].err.code, MCFS_REPLICA_IS_GONE);
    for (size_t i = 0; i < COUNT; i++) {
        size_t want = size_of(i) > offset ? size_of(i) - offset : 0;
        cr_assert_eq(items[i].err.code, MCFS_OK, "%s", items[i].err.msg);
        cr_assert_eq(items[i].got, want, "%zu: %zu, not %zu", i, items[i].got, want);
        for (size_t at = 0; at < want; at++)
            cr_assert(((unsigned char *)items[i].buf)[at] == byte_at(i, at + offset));
    }
    for (size_t i = 0; i <= COUNT; i++)
        free(base[i]);
}

static void look(const char *store, const char *engine)
{
    char path[256];
    const struct mcfs_backend_ops *ops = mcfs_backend_find(store);
    snprintf(path, sizeof(path), "%s/%s-%s", dir, store, engine);
    for (int time = 0; time < 2; time++) { /* as put, and as recovered */
        struct mcfs_backend_config config = {
            .dir = path, .io_engine = engine, .capacity_bytes = 1u << 30};
        struct mcfs_backend_recovery found;
        struct mcfs_error err = MCFS_ERROR_INIT;
        struct mcfs_backend *b = ops->open(&config, &found, &err);
        cr_assert_not_null(b, "%s", err.msg);
        if (time == 0)
            put_all(b);
        struct mcfs_backend_stats stats;
        b->ops->stats(b, &stats);
        cr_assert_eq(stats.objects, COUNT);
        get_all(b, 0, false);
        get_all(b, 0, true);
        get_all(b, 4097, true);
        cr_assert_eq(b->ops->close(b, &err), 0, "%s", err.msg);
    }
}

Test(get, every_store_with_each_engine)
{
    for (size_t s = 0; s < 3; s++)
        for (size_t e = 0; e < 2; e++)
            look(stores[s], engines[e]);
}

/* Two threads put the same versions in opposite orders. */
struct opposite {
    struct mcfs_backend *b;
    unsigned char *data;
    bool backwards;
};

static void *put_pairs(void *arg)
{
    struct opposite *o = arg;
    for (uint64_t version = 1; version <= 40; version++) {
        struct mcfs_backend_put items[2] = {0};
        for (int i = 0; i < 2; i++) {
            items[i].object =
                (struct mcfs_object){.tenant = TENANT,
                                     .key = mcfs_slice_str((i == 0) != o->backwards ? "a" : "b"),
                                     .version = version,
                                     .size = 1u << 20};
            items[i].data = o->data;
        }
        cr_assert_eq(o->b->ops->put(o->b, items, 2), 0);
    }
    return NULL;
}

Test(get, batches_in_opposite_orders_do_not_wait_for_each_other)
{
    struct mcfs_backend_config config = {.dir = dir};
    struct mcfs_backend_recovery found;
    struct mcfs_error err = MCFS_ERROR_INIT;
    const struct mcfs_backend_ops *ops = mcfs_backend_find(stores[0]);
    struct mcfs_backend *b = ops->open(&config, &found, &err);
    struct mcfs_backend_stats stats;
    pthread_t other;
    cr_assert_not_null(b, "%s", err.msg);
    unsigned char *data = calloc(1, 1u << 20);
    struct opposite x = {b, data, false}, y = {b, data, true};
    cr_assert_eq(pthread_create(&other, NULL, put_pairs, &y), 0);
    put_pairs(&x);
    pthread_join(other, NULL);
    b->ops->stats(b, &stats);
    cr_assert_eq(stats.objects, 80);
    cr_assert_eq(b->ops->close(b, &err), 0, "%s", err.msg);
    free(data);
}

/* The third of five values lost its end: it alone fails. */
static void look_at_a_short_one(const char *store, const char *engine)
{
    enum { N = 5, SIZE = (2 << 20) + 77 };
    char path[256], file[1024], keys[N][8];
    struct mcfs_backend_put puts[N] = {0};
    struct mcfs_backend_recovery found;
    struct mcfs_backend_place place;
    struct mcfs_error err = MCFS_ERROR_INIT;
    unsigned char *data = malloc(SIZE);
    snprintf(path, sizeof(path), "%s/short-%s-%s", dir, store, engine);
    struct mcfs_backend_config config = {.dir = path, .io_engine = engine};
    struct mcfs_backend *b = mcfs_backend_find(store)->open(&config, &found, &err);
    cr_assert_not_null(b, "%s", err.msg);
    for (size_t i = 0; i < N; i++) {
        snprintf(keys[i], sizeof(keys[i]), "k%zu", i);
        puts[i].object = (struct mcfs_object){
            .tenant = TENANT, .key = mcfs_slice_str(keys[i]), .version = 1, .size = SIZE};
        puts[i].data = memset(data, 's', SIZE);
    }
    cr_assert_eq(b->ops->put(b, puts, N), 0);
    cr_assert_eq(b->ops->locate(b, TENANT, mcfs_slice_str(keys[2]), 1, &place, &err), 0);
    snprintf(file, sizeof(file), "%s/%s", path, place.file);
    cr_assert_eq(truncate(file, SIZE / 2), 0);
    for (int direct = 0; direct < 2; direct++) {
        struct mcfs_backend_get gets[N] = {0};
        unsigned char *memory[N];
        for (size_t i = 0; i < N; i++)
            gets[i] = (struct mcfs_backend_get){.tenant = TENANT,
                                                .key = mcfs_slice_str(keys[i]),
                                                .version = 1,
                                                .buf = memory_of(i, &memory[i]),
                                                .len = SIZE,
                                                .direct = direct};
        cr_assert_eq(b->ops->get(b, gets, N), 1);
        for (size_t i = 0; i < N; i++) {
            cr_assert_eq(gets[i].err.code, i == 2 ? MCFS_CHECKSUM_MISMATCH : MCFS_OK, "%s",
                         gets[i].err.msg);
            cr_assert_eq(gets[i].got, i == 2 ? 0 : SIZE);
            cr_assert(i == 2 || memcmp(gets[i].buf, data, SIZE) == 0);
            free(memory[i]);
        }
    }
    cr_assert_eq(b->ops->close(b, &err), 0, "%s", err.msg);
    free(data);
}

Test(get, a_value_that_lost_its_end_fails_alone)
{
    for (size_t e = 0; e < 2; e++) {
        look_at_a_short_one("bucket_storage_backend", engines[e]);
        look_at_a_short_one("file_per_key_storage_backend", engines[e]);
    }
}
