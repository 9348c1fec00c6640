/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_TOOLS_BENCH_CLIENT_H
#define MCFS_TOOLS_BENCH_CLIENT_H

/*
 * A node's session with a master, for measuring: batches go out pipelined on one connection, as a
 * client in any language would send them.  One thread per client.
 */

#include "common/rpc/rpc.h"

#define BENCH_KEY_BYTES 90
#define BENCH_BATCH_MAX 64

struct bench_client;

/* Registers a node of its own with an empty inventory; number tells the clients of a run apart. */
struct bench_client *bench_client_open(const char *address, uint32_t number,
                                       struct mcfs_error *err);
void bench_client_close(struct bench_client *c);

/* PutStart, then PutEnd, of n keys (at most BENCH_BATCH_MAX) numbered from `first`; 0 or -1. */
int bench_client_put(struct bench_client *c, uint64_t first, uint32_t n, struct mcfs_error *err);

/* BatchGetReplicaList of n numbered keys, or GetReplicaList when n is 1.  A key that is not there
 * is an error. */
int bench_client_get(struct bench_client *c, const uint64_t *keys, uint32_t n,
                     struct mcfs_error *err);

/* Numbers that look random; *state is any number but 0. */
static inline uint64_t bench_random(uint64_t *state)
{
    *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
    return *state;
}

#endif
