/* SPDX-License-Identifier: Apache-2.0 */
#include "common/cleanup.h"
#include "common/clock.h"
#include "tools/bench/bench_mooncake.h"

#include <stdatomic.h>

/* All threads of a test, which begin together. */
struct crew {
    const struct mooncake_options *o;
    struct bench_target *target;
    pthread_barrier_t begin;
    _Atomic uint64_t next_key; /* to be written */
};

struct worker {
    struct crew *crew;
    pthread_t thread;
    int (*work)(struct worker *w);
    struct bench_batch batch;
    struct bench_samples samples;
    struct bench_chooser chooser;
    uint64_t first_key;
    struct mcfs_error err;
    int result;
};

static int load_own_keys(struct worker *w)
{
    const struct mooncake_options *o = w->crew->o;
    for (uint32_t op = 0; op < o->num_operations; op++) {
        uint64_t failed = w->samples.errors;
        mooncake_batch_of(&w->batch, w->first_key + (uint64_t)op * o->batch_size, o->batch_size);
        mooncake_read(w->crew->target, &w->batch, &w->samples, NULL);
        if (o->verify && op % o->verify_rate == 0 && w->samples.errors == failed &&
            mooncake_check(o, &w->batch, &w->samples, &w->err))
            return -1;
    }
    return 0;
}

static int read_chosen_keys(struct worker *w)
{
    const struct mooncake_options *o = w->crew->o;
    for (uint32_t op = 0; op < o->num_operations; op++) {
        w->batch.count = 0;
        for (uint32_t i = 0; i < o->batch_size; i++)
            bench_batch_add(&w->batch, bench_choose(&w->chooser));
        mooncake_read(w->crew->target, &w->batch, &w->samples, NULL);
    }
    return 0;
}

static int write_new_keys(struct worker *w)
{
    const struct mooncake_options *o = w->crew->o;
    for (uint32_t op = 0; op < o->num_operations; op++) {
        uint64_t first = atomic_fetch_add(&w->crew->next_key, o->batch_size);
        mooncake_batch_of(&w->batch, first, o->batch_size);
        mooncake_batch_fill(&w->batch, o->value_size, 0);
        mooncake_write(w->crew->target, &w->batch, &w->samples, NULL);
    }
    return 0;
}

static void *run_worker(void *arg)
{
    struct worker *w = arg;
    pthread_barrier_wait(&w->crew->begin);
    w->result = w->work(w);
    return NULL;
}

static int workers_init(struct worker *workers, size_t n, struct crew *crew, struct mcfs_error *err)
{
    for (size_t i = 0; i < n; i++) {
        workers[i].crew = crew;
        if (bench_batch_init(&workers[i].batch, crew->target, crew->o->batch_size, err) ||
            bench_samples_init(&workers[i].samples, crew->o->num_operations, err))
            return -1;
    }
    return 0;
}

static void workers_free(struct worker *workers, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        bench_batch_free(&workers[i].batch);
        bench_samples_free(&workers[i].samples);
    }
    free(workers);
}

/* Has all of them work; seconds by the clock, or -1. */
static double run_all(struct worker *workers, size_t n, struct crew *crew, struct mcfs_error *err)
{
    pthread_barrier_init(&crew->begin, NULL, (unsigned)n + 1);
    for (size_t i = 0; i < n; i++)
        if (pthread_create(&workers[i].thread, NULL, run_worker, &workers[i])) {
            /* Those that are there wait for all: nothing to go on with. */
            fprintf(stderr, "bench-backend: no thread more than %zu\n", i);
            exit(1);
        }
    int64_t began = mcfs_mono_ns();
    pthread_barrier_wait(&crew->begin);
    for (size_t i = 0; i < n; i++)
        pthread_join(workers[i].thread, NULL);
    double took = (double)(mcfs_mono_ns() - began) / 1e9;
    pthread_barrier_destroy(&crew->begin);
    for (size_t i = 0; i < n; i++)
        if (workers[i].result) {
            *err = workers[i].err;
            return -1;
        }
    return took;
}

/* The figures of workers from..from+n-1 together. */
static int outcome_of(struct bench_outcome *out, const struct worker *workers, size_t n,
                      double wall_s, struct mcfs_error *err)
{
    _cleanup_free_ struct bench_samples *samples = malloc(n * sizeof(*samples));
    if (!samples)
        return mcfs_fail_errno(err, ENOMEM, "figures of %zu threads", n);
    for (size_t i = 0; i < n; i++) {
        samples[i] = workers[i].samples;
        if (samples[i].errors)
            fprintf(stderr, "bench-backend: %s\n", samples[i].err.msg);
    }
    return bench_outcome_make(out, samples, n, wall_s, err);
}

int mooncake_concurrent_load(const struct mooncake_options *o, struct bench_target *t,
                             struct bench_outcome out[2], struct mcfs_error *err)
{
    size_t n = o->num_threads;
    uint64_t each = (uint64_t)o->num_operations * o->batch_size;
    struct crew crew = {.o = o, .target = t};
    struct worker *workers = calloc(n, sizeof(*workers));
    if (!workers)
        return mcfs_fail_errno(err, ENOMEM, "%zu threads", n);
    int r = workers_init(workers, n, &crew, err);
    for (size_t i = 0; i < n; i++) {
        workers[i].work = load_own_keys;
        workers[i].first_key = i * each;
    }
    r = r ? r : mooncake_populate(o, t, 0, n * each, err);
    double wall_s = r ? -1 : run_all(workers, n, &crew, err);
    r = wall_s < 0 ? -1 : outcome_of(&out[0], workers, n, wall_s, err);
    workers_free(workers, n);
    return r;
}

int mooncake_mixed_rw(const struct mooncake_options *o, struct bench_target *t,
                      struct bench_outcome out[2], struct mcfs_error *err)
{
    size_t readers = o->read_threads, n = readers + o->write_threads;
    uint64_t stored = (uint64_t)o->num_operations * o->batch_size * n / 2;
    struct crew crew = {.o = o, .target = t, .next_key = stored};
    _cleanup_free_ double *shares = NULL;
    if (o->pattern == BENCH_ZIPF && !(shares = bench_zipf_shares(stored, o->zipf_skew, err)))
        return -1;
    struct worker *workers = calloc(n, sizeof(*workers));
    if (!workers)
        return mcfs_fail_errno(err, ENOMEM, "%zu threads", n);
    int r = workers_init(workers, n, &crew, err);
    for (size_t i = 0; i < n; i++) {
        workers[i].work = i < readers ? read_chosen_keys : write_new_keys;
        workers[i].chooser = (struct bench_chooser){
            .pattern = o->pattern, .keys = stored, .state = 42 + i, .shares = shares};
    }
    r = r ? r : mooncake_populate(o, t, 0, stored, err);
    double wall_s = r ? -1 : run_all(workers, n, &crew, err);
    r = wall_s < 0 || outcome_of(&out[0], workers, readers, wall_s, err) ||
                outcome_of(&out[1], workers + readers, n - readers, wall_s, err)
            ? -1
            : 0;
    workers_free(workers, n);
    return r;
}
