/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Puts batches into a store until it is killed, for test_io_engine.py.
 *
 *   batch_worker DIRECTORY BACKEND ENGINE
 *
 * Writes "engine NAME", the one in use, and "KEY SIZE" for each object that has been acknowledged.
 * An object of key k is "k k k ...", cut at its size.  Batches of three kinds take turns: large
 * values, enough of them that they go past the page cache; large and small ones, nothing aligned;
 * one large value.
 */
#include "backends/backends.h"
#include "common/cleanup.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define MOST 6u
#define LARGEST (5u << 20)

static size_t size_of(uint64_t kind, unsigned i)
{
    if (kind == 0)
        return (i + 2) % 2 ? LARGEST : 4u << 20;
    if (kind == 1)
        return i % 2 ? 5000 * i + 1 : (1u << 20) + 1000 * i + 3;
    return (3u << 20) + 5;
}

static void fill(char *data, size_t size, const char *key)
{
    size_t len = strlen(key) + 1;
    for (size_t at = 0; at < size; at++)
        data[at] = at % len == len - 1 ? ' ' : key[at % len];
}

static int put(struct mcfs_backend *b, char *data[MOST], uint64_t batch)
{
    struct mcfs_backend_put items[MOST] = {0};
    char keys[MOST][32];
    uint64_t kind = batch % 3;
    unsigned n = kind == 2 ? 1 : MOST;
    for (unsigned i = 0; i < n; i++) {
        snprintf(keys[i], sizeof(keys[i]), "b%" PRIu64 "-%u", batch, i);
        char *at = data[i] + (kind == 1 ? 13 : 0);
        size_t size = size_of(kind, i);
        fill(at, size, keys[i]);
        items[i].object = (struct mcfs_object){.tenant = MCFS_SLICE_LITERAL("default"),
                                               .key = mcfs_slice_str(keys[i]),
                                               .version = batch * MOST + i + 1,
                                               .size = size,
                                               .attr = {.mode = 0644}};
        items[i].data = at;
    }
    if (b->ops->put(b, items, n)) {
        for (unsigned i = 0; i < n; i++)
            if (items[i].err.code)
                fprintf(stderr, "%s: %s\n", keys[i], items[i].err.msg);
        return -1;
    }
    for (unsigned i = 0; i < n; i++)
        printf("%s %" PRIu64 "\n", keys[i], items[i].object.size);
    return fflush(stdout);
}

int main(int argc, char **argv)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct mcfs_backend_recovery found;
    struct mcfs_backend_stats stats;
    char *data[MOST];
    const struct mcfs_backend_ops *ops = argc == 4 ? mcfs_backend_find(argv[2]) : NULL;
    if (!ops) {
        fprintf(stderr, "usage: batch_worker DIRECTORY BACKEND ENGINE\n");
        return 2;
    }
    for (unsigned i = 0; i < MOST; i++)
        if (!(data[i] = aligned_alloc(4096, LARGEST + 8192)))
            return 1;
    struct mcfs_backend_config config = {
        .dir = argv[1], .io_engine = argv[3], .capacity_bytes = 8ull << 30};
    struct mcfs_backend *b = ops->open(&config, &found, &err);
    if (!b) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    b->ops->stats(b, &stats);
    printf("engine %s\n", stats.io_engine);
    for (uint64_t batch = 1; put(b, data, batch) == 0; batch++)
        ;
    return 1;
}
