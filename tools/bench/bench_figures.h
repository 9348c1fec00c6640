/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_BENCH_FIGURES_H
#define MCFS_BENCH_FIGURES_H

/* What one pass of a workload measured: times of single operations, and the figures made of them.
 */

#include <jansson.h>
#include <mooncakefs/error.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* One thread's measurements; nobody else looks before it has ended. */
struct bench_samples {
    double *ms; /* one for each operation */
    uint64_t count, cap;
    uint64_t bytes;
    uint64_t errors; /* operations that failed */
    uint64_t wrong;  /* values that were read with other bytes */
    struct mcfs_error err;
};

#define BENCH_FIGURES_MAX 12

struct bench_outcome {
    const char *const *names; /* of the figures, NULL at the end; static */
    double figures[BENCH_FIGURES_MAX];
    uint64_t operations, bytes, errors, wrong;
};

/* Where operations were timed, in this order. */
enum bench_figure {
    BENCH_OPS_PER_S, /* of the operations' own time, all threads' added up */
    BENCH_MB_PER_S,  /* MiB, of the same time */
    BENCH_BACKEND_S, /* that time */
    BENCH_WALL_S,    /* and by the clock: with what is between the operations */
    BENCH_MIN_MS,
    BENCH_MEAN_MS,
    BENCH_P50_MS,
    BENCH_P90_MS,
    BENCH_P99_MS,
    BENCH_P999_MS,
    BENCH_MAX_MS,
};
extern const char *const bench_timed_names[];

/* Room for so many operations; 0 or -1.  bench_samples_free gives it back. */
int bench_samples_init(struct bench_samples *s, uint64_t operations, struct mcfs_error *err);
void bench_samples_free(struct bench_samples *s);

/* One operation more; bytes counts when it did not fail. */
void bench_samples_add(struct bench_samples *s, int64_t ns, uint64_t bytes,
                       const struct mcfs_error *failure);

/* The figures of n threads together; 0 or -1 without memory. */
int bench_outcome_make(struct bench_outcome *out, const struct bench_samples *threads, size_t n,
                       double wall_s, struct mcfs_error *err);

/* The median of each figure over n outcomes, and all their errors. */
void bench_outcome_median(struct bench_outcome *out, const struct bench_outcome *rounds, size_t n);

json_t *bench_outcome_json(const struct bench_outcome *o);

/* A line for people. */
void bench_outcome_print(const struct bench_outcome *o, FILE *to);

/* Sorts v. */
double bench_median(double *v, size_t n);

/* The given share (0 to 1) of sorted values lies below; between two of them in proportion. */
double bench_quantile(const double *sorted, size_t n, double share);

#endif
