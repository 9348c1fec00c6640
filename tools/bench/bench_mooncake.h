/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_BENCH_MOONCAKE_H
#define MCFS_BENCH_MOONCAKE_H

/*
 * The workloads of Mooncake's storage_backend_bench, by the same arguments, on our stores: so that
 * who has both can run both with one command line.
 */

#include "tools/bench/bench_data.h"
#include "tools/bench/bench_figures.h"
#include "tools/bench/bench_target.h"

struct mooncake_options {
    /* As given: */
    char *backend, *storage_path, *test, *cache_mode, *pattern_name, *io_engine;
    uint64_t value_size, capacity_gb, verify_rate, report_interval;
    uint32_t batch_size, num_operations, warmup_operations, num_threads, read_threads,
        write_threads, rounds;
    double fill_ratio, read_ratio, hotset_ratio, zipf_skew;
    bool run_all, skip_cleanup, verify, verify_warmup_all, fail_fast, flush_between_ops,
        time_series, plain, help;
    /* What that means: */
    enum bench_pattern pattern;
    bool drop_cache, direct, suite;
    uint64_t capacity;
};

/* One test of the benchmark. */
struct mooncake_test {
    const char *name;
    const char *outcomes[2]; /* what it measures; the second may be NULL */
    bool in_all;             /* --test=all means it */
    bool beside_plain;       /* a plain file can do the same */
    /* Bytes of values that are stored at once at the most. */
    double (*bytes)(const struct mooncake_options *o);
    uint64_t (*versions)(const struct mooncake_options *o); /* for bench_target_config; or NULL */
    /* On a target that is open and empty; 0 or -1. */
    int (*run)(const struct mooncake_options *o, struct bench_target *t,
               struct bench_outcome out[2], struct mcfs_error *err);
};
extern const struct mooncake_test mooncake_tests[]; /* a test without a name ends them */

/* From the command line, argv[0] being the mode's name.  -1 with what is wrong in err. */
int mooncake_options_parse(struct mooncake_options *o, int argc, char **argv,
                           struct mcfs_error *err);
void mooncake_options_help(FILE *to);
void mooncake_options_free(struct mooncake_options *o);

/* The store's ops by the name that the benchmark has for it, or NULL. */
const struct mcfs_backend_ops *mooncake_backend(const char *name);

/* The names it has, NULL at the end. */
extern const char *const mooncake_backends[];

/* ---- bench_mooncake_batches.c: what tests are made of ---- */

/* Stores keys from..to-1, each value that of its key, then syncs; and has the page cache dropped
 * where that is asked for. */
int mooncake_populate(const struct mooncake_options *o, struct bench_target *t, uint64_t from,
                      uint64_t to, struct mcfs_error *err);

/* Fills a batch with n keys from `first` on. */
void mooncake_batch_of(struct bench_batch *b, uint64_t first, uint32_t n);

/* Gives each key of a batch its value. */
void mooncake_batch_fill(struct bench_batch *b, uint64_t value_size, uint64_t salt);

/* One operation, timed unless s is NULL; its failure is counted, or returned (-1) without s. */
int mooncake_write(struct bench_target *t, struct bench_batch *b, struct bench_samples *s,
                   struct mcfs_error *err);
int mooncake_read(struct bench_target *t, struct bench_batch *b, struct bench_samples *s,
                  struct mcfs_error *err);

/* Compares what a batch has read; wrong values are counted in s, or returned when the first one is
 * to end the program. */
int mooncake_check(const struct mooncake_options *o, const struct bench_batch *b,
                   struct bench_samples *s, struct mcfs_error *err);

/* ---- bench_mooncake_threads.c: tests of several threads ---- */

int mooncake_concurrent_load(const struct mooncake_options *o, struct bench_target *t,
                             struct bench_outcome out[2], struct mcfs_error *err);
int mooncake_mixed_rw(const struct mooncake_options *o, struct bench_target *t,
                      struct bench_outcome out[2], struct mcfs_error *err);

#endif
