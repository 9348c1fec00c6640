/* SPDX-License-Identifier: Apache-2.0 */
#include "master/latency.h"

#include "common/cleanup.h"

#include <inttypes.h>
#include <stdatomic.h>

#define BUCKETS 21 /* up to 2, 4, 8 ... 2^20 us, and more */

/* Written by its thread alone. */
struct counts {
    struct counts *next;
    struct {
        _Atomic uint64_t buckets[BUCKETS], ns;
    } methods[LATENCY_METHODS_MAX];
};

/* Of all threads that ever were: what one has counted stays when it ends. */
static struct counts *_Atomic all;
static _Thread_local struct counts *mine;

static struct counts *make_mine(void)
{
    if ((mine = calloc(1, sizeof(*mine)))) {
        mine->next = atomic_load(&all);
        while (!atomic_compare_exchange_weak(&all, &mine->next, mine))
            ;
    }
    return mine;
}

/* No other thread writes: a load and a store do. */
static void add(_Atomic uint64_t *to, uint64_t n)
{
    atomic_store_explicit(to, atomic_load_explicit(to, memory_order_relaxed) + n,
                          memory_order_relaxed);
}

static unsigned bucket_of(int64_t ns)
{
    uint64_t us = ns > 0 ? ((uint64_t)ns + 999) / 1000 : 0;
    unsigned k = us <= 2 ? 0 : 63 - (unsigned)__builtin_clzll(us - 1);
    return k < BUCKETS - 1 ? k : BUCKETS - 1;
}

void latency_note(unsigned method, int64_t ns)
{
    struct counts *c = mine ? mine : make_mine();
    if (!c || method >= LATENCY_METHODS_MAX)
        return;
    add(&c->methods[method].buckets[bucket_of(ns)], 1);
    add(&c->methods[method].ns, ns > 0 ? (uint64_t)ns : 0);
}

static void put_method(const char *name, unsigned method, struct mcfs_buf *out)
{
    uint64_t buckets[BUCKETS] = {0}, ns = 0, sum = 0;
    for (const struct counts *c = atomic_load(&all); c; c = c->next) {
        for (unsigned k = 0; k < BUCKETS; k++)
            buckets[k] +=
                atomic_load_explicit(&c->methods[method].buckets[k], memory_order_relaxed);
        ns += atomic_load_explicit(&c->methods[method].ns, memory_order_relaxed);
    }
    for (unsigned k = 0; k < BUCKETS; k++)
        sum += buckets[k];
    if (!sum)
        return;
    sum = 0;
    for (unsigned k = 0; k < BUCKETS - 1; k++) {
        sum += buckets[k];
        mcfs_buf_printf(
            out, "mooncakefs_rpc_duration_seconds_bucket{method=\"%s\",le=\"%.7g\"} %" PRIu64 "\n",
            name, (double)(2u << k) / 1e6, sum);
    }
    sum += buckets[BUCKETS - 1];
    mcfs_buf_printf(out,
                    "mooncakefs_rpc_duration_seconds_bucket{method=\"%s\",le=\"+Inf\"} %" PRIu64
                    "\nmooncakefs_rpc_duration_seconds_sum{method=\"%s\"} %.9f\n"
                    "mooncakefs_rpc_duration_seconds_count{method=\"%s\"} %" PRIu64 "\n",
                    name, sum, name, (double)ns / 1e9, name, sum);
}

void latency_metrics(const char *(*name)(unsigned method), unsigned count, struct mcfs_buf *out)
{
    mcfs_buf_append_str(
        out,
        "# HELP mooncakefs_rpc_duration_seconds How long requests took, by method.\n"
        "# TYPE mooncakefs_rpc_duration_seconds histogram\n");
    for (unsigned i = 0; i < count && i < LATENCY_METHODS_MAX; i++)
        put_method(name(i), i, out);
}
