/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_BENCH_TARGET_H
#define MCFS_BENCH_TARGET_H

/*
 * What a workload of batches runs on: a node-local store, or one plain file with a place for each
 * key, written and read with a system call for each value.  Keys are numbers.
 *
 * Any thread may use a target, each with batches of its own.
 */

#include <mooncakefs/backend.h>
#include <mooncakefs/error.h>

#define BENCH_KEY_MAX 40

struct bench_target_config {
    const struct mcfs_backend_ops *ops; /* NULL: the plain file */
    const char *dir;                    /* absent or empty */
    const char *io_engine;
    uint64_t capacity;   /* bytes of the store */
    uint64_t value_size; /* bytes of each value */
    bool direct;         /* reads go past the page cache */
    bool sync_writes;    /* each batch that is written is made durable, which is part of it */
    uint64_t versions;   /* keys that will be written again: from 0 to below that */
};

struct bench_target {
    struct bench_target_config config;
    struct mcfs_backend *store;
    int fd, direct_fd;
    double open_ms;     /* what opening it took */
    uint64_t slot;      /* value_size in whole pages */
    uint32_t *versions; /* how often a key was written; NULL: once */
};

/* The keys and memory of one operation.  What it needs is made before it is timed. */
struct bench_batch {
    uint32_t cap, count;
    uint64_t *keys;
    char *data; /* a slot for each; page-aligned */
    uint64_t slot;
    char (*names)[BENCH_KEY_MAX];
    struct mcfs_backend_put *puts;
    struct mcfs_backend_get *gets;
    struct mcfs_backend_name *olds;
};

/* Returns 0, or -1 with nothing left open. */
int bench_target_open(struct bench_target *t, const struct bench_target_config *config,
                      struct mcfs_error *err);
int bench_target_close(struct bench_target *t, struct mcfs_error *err);

int bench_batch_init(struct bench_batch *b, const struct bench_target *t, uint32_t cap,
                     struct mcfs_error *err);
void bench_batch_free(struct bench_batch *b);

/* Adds a key, once. */
void bench_batch_add(struct bench_batch *b, uint64_t key);

static inline char *bench_batch_value(const struct bench_batch *b, uint32_t i)
{
    return b->data + i * b->slot;
}

/* Gets a batch ready for the operation of that name. */
void bench_target_ready_write(struct bench_target *t, struct bench_batch *b);
void bench_target_ready_read(struct bench_target *t, struct bench_batch *b);

/* The operations: what is timed.  0, or -1 when one of the values failed. */
int bench_target_write(struct bench_target *t, struct bench_batch *b, struct mcfs_error *err);
int bench_target_read(struct bench_target *t, struct bench_batch *b, struct mcfs_error *err);

/* Whether a key is stored, as the store's index has it; key: as in a batch. */
bool bench_target_has(struct bench_target *t, const char *name);
void bench_key_name(uint64_t key, char name[BENCH_KEY_MAX]);

/* Makes durable what was written. */
int bench_target_sync(struct bench_target *t, struct mcfs_error *err);

#endif
