/* SPDX-License-Identifier: Apache-2.0 */
#include "common/cleanup.h"
#include "common/clock.h"
#include "tools/bench/bench_mooncake.h"

#include <inttypes.h>

#define EXIST_VALUE 1024u
#define FIRST_LOADS 10u

static double seconds_since(int64_t began_ns)
{
    return (double)(mcfs_mono_ns() - began_ns) / 1e9;
}

static int finish(struct bench_outcome *out, const struct bench_samples *s, double wall_s,
                  struct mcfs_error *err)
{
    if (s->errors)
        fprintf(stderr, "bench-backend: %s\n", s->err.msg);
    return bench_outcome_make(out, s, 1, wall_s, err);
}

static int run_init(const struct mooncake_options *o, struct bench_target *t,
                    struct bench_outcome out[2], struct mcfs_error *err)
{
    static const char *const names[] = {"init_ms", NULL};
    (void)o;
    (void)err;
    out[0] = (struct bench_outcome){.names = names, .figures = {t->open_ms}, .operations = 1};
    return 0;
}

/* Reads back what was written, one operation in verify_rate. */
static int read_back(const struct mooncake_options *o, struct bench_target *t,
                     struct bench_batch *b, struct bench_samples *s, struct mcfs_error *err)
{
    for (uint64_t op = 0; op < o->num_operations; op += o->verify_rate) {
        mooncake_batch_of(b, (o->warmup_operations + op) * o->batch_size, o->batch_size);
        if (mooncake_read(t, b, NULL, err) || mooncake_check(o, b, s, err))
            return -1;
    }
    return 0;
}

static int run_offload(const struct mooncake_options *o, struct bench_target *t,
                       struct bench_outcome out[2], struct mcfs_error *err)
{
    _cleanup_(bench_batch_free) struct bench_batch b = {.cap = 0};
    _cleanup_(bench_samples_free) struct bench_samples s;
    if (bench_samples_init(&s, o->num_operations, err) ||
        bench_batch_init(&b, t, o->batch_size, err))
        return -1;
    int64_t began = mcfs_mono_ns();
    for (uint64_t op = 0; op < (uint64_t)o->warmup_operations + o->num_operations; op++) {
        bool counts = op >= o->warmup_operations;
        mooncake_batch_of(&b, op * o->batch_size, o->batch_size);
        mooncake_batch_fill(&b, o->value_size, 0);
        if (op == o->warmup_operations)
            began = mcfs_mono_ns();
        if (mooncake_write(t, &b, counts ? &s : NULL, err))
            return -1;
    }
    double wall_s = seconds_since(began);
    if (o->verify && !s.errors && read_back(o, t, &b, &s, err))
        return -1;
    return finish(&out[0], &s, wall_s, err);
}

static int run_load(const struct mooncake_options *o, struct bench_target *t,
                    struct bench_outcome out[2], struct mcfs_error *err)
{
    _cleanup_(bench_batch_free) struct bench_batch b = {.cap = 0};
    _cleanup_(bench_samples_free) struct bench_samples s;
    uint64_t operations = (uint64_t)o->warmup_operations + o->num_operations;
    if (bench_samples_init(&s, o->num_operations, err) ||
        bench_batch_init(&b, t, o->batch_size, err) ||
        mooncake_populate(o, t, 0, operations * o->batch_size, err))
        return -1;
    int64_t began = mcfs_mono_ns();
    for (uint64_t op = 0; op < operations; op++) {
        bool counts = op >= o->warmup_operations;
        uint64_t failed = s.errors;
        mooncake_batch_of(&b, op * o->batch_size, o->batch_size);
        if (op == o->warmup_operations)
            began = mcfs_mono_ns();
        if (mooncake_read(t, &b, counts ? &s : NULL, err))
            return -1;
        bool check =
            o->verify && s.errors == failed &&
            (counts ? (op - o->warmup_operations) % o->verify_rate == 0 : o->verify_warmup_all);
        if (check && mooncake_check(o, &b, &s, err))
            return -1;
    }
    return finish(&out[0], &s, seconds_since(began), err);
}

static int run_exist(const struct mooncake_options *o, struct bench_target *t,
                     struct bench_outcome out[2], struct mcfs_error *err)
{
    _cleanup_(bench_samples_free) struct bench_samples hits = {.cap = 0};
    _cleanup_(bench_samples_free) struct bench_samples misses = {.cap = 0};
    const struct mcfs_error is_wrong = {MCFS_INTERNAL_ERROR, EIO, "a look-up was answered wrongly"};
    const struct mcfs_error is_right = MCFS_ERROR_INIT;
    uint64_t stored = o->num_operations / 2;
    struct mooncake_options single = *o;
    single.batch_size = 1;
    single.drop_cache = false;
    t->config.value_size = EXIST_VALUE;
    if (bench_samples_init(&hits, stored, err) ||
        bench_samples_init(&misses, o->num_operations - stored, err) ||
        mooncake_populate(&single, t, 0, stored, err))
        return -1;
    double wall_s[2] = {0, 0};
    int64_t began = mcfs_mono_ns();
    for (uint64_t key = 0; key < o->num_operations; key++) {
        char name[BENCH_KEY_MAX];
        bench_key_name(key, name);
        if (key == stored) {
            wall_s[0] = seconds_since(began);
            began = mcfs_mono_ns();
        }
        int64_t from = mcfs_mono_ns();
        bool found = bench_target_has(t, name);
        bench_samples_add(key < stored ? &hits : &misses, mcfs_mono_ns() - from, 0,
                          found == (key < stored) ? &is_right : &is_wrong);
    }
    wall_s[1] = seconds_since(began);
    return finish(&out[0], &hits, wall_s[0], err) || finish(&out[1], &misses, wall_s[1], err) ? -1
                                                                                              : 0;
}

static uint64_t churn_keys(const struct mooncake_options *o)
{
    uint64_t keys = (uint64_t)((double)o->capacity * o->fill_ratio / (double)o->value_size);
    return keys ? keys : 1;
}

/* One line of the series, of what was done so far. */
static void report(const struct bench_target *t, const struct bench_samples *s, uint32_t op,
                   uint32_t of, int64_t began)
{
    double ms = 0;
    for (uint64_t i = 0; i < s->count; i++)
        ms += s->ms[i];
    printf("  %s %" PRIu32 "/%" PRIu32 ": %.1f s, %.1f MB/s\n", t->store ? "churn" : "plain", op,
           of, seconds_since(began), ms > 0 ? (double)s->bytes / (1 << 20) / ms * 1e3 : 0);
}

static int run_churn(const struct mooncake_options *o, struct bench_target *t,
                     struct bench_outcome out[2], struct mcfs_error *err)
{
    _cleanup_(bench_batch_free) struct bench_batch b = {.cap = 0};
    _cleanup_(bench_samples_free) struct bench_samples s;
    uint64_t state = 42, keys = churn_keys(o);
    if (bench_samples_init(&s, o->num_operations, err) ||
        bench_batch_init(&b, t, o->batch_size, err) || mooncake_populate(o, t, 0, keys, err))
        return -1;
    int64_t began = mcfs_mono_ns();
    for (uint32_t op = 0; op < o->num_operations; op++) {
        bool reads = bench_random_share(&state) < o->read_ratio;
        b.count = 0;
        for (uint32_t i = 0; i < o->batch_size; i++)
            bench_batch_add(&b, bench_random_below(&state, keys));
        if (reads) {
            mooncake_read(t, &b, &s, err);
        } else {
            mooncake_batch_fill(&b, o->value_size, (op + 1) * 1000ull);
            mooncake_write(t, &b, &s, err);
        }
        if (o->time_series && (op + 1) % o->report_interval == 0)
            report(t, &s, op + 1, o->num_operations, began);
    }
    return finish(&out[0], &s, seconds_since(began), err);
}

static int run_restart(const struct mooncake_options *o, struct bench_target *t,
                       struct bench_outcome out[2], struct mcfs_error *err)
{
    static const char *const names[] = {"init_ms", "first_load_avg_ms", "first_load_ms", NULL};
    _cleanup_(bench_batch_free) struct bench_batch b = {.cap = 0};
    _cleanup_(bench_samples_free) struct bench_samples s;
    struct bench_target_config config = t->config;
    struct mooncake_options single = *o;
    single.batch_size = 1;
    if (bench_samples_init(&s, FIRST_LOADS, err) || bench_batch_init(&b, t, 1, err) ||
        mooncake_populate(&single, t, 0, o->num_operations, err) || bench_target_close(t, err))
        return -1;
    if (bench_target_open(t, &config, err))
        return -1;
    double sum = 0;
    for (uint64_t key = 0; key < MCFS_MIN(o->num_operations, FIRST_LOADS); key++) {
        mooncake_batch_of(&b, key, 1);
        mooncake_read(t, &b, &s, err);
        if (o->verify && !s.errors && mooncake_check(o, &b, &s, err))
            return -1;
    }
    for (uint64_t i = 0; i < s.count; i++)
        sum += s.ms[i];
    if (finish(&out[0], &s, 0, err))
        return -1;
    out[0].names = names;
    out[0].figures[0] = t->open_ms;
    out[0].figures[1] = sum / (double)s.count;
    out[0].figures[2] = s.ms[0];
    return 0;
}

static double values_of(const struct mooncake_options *o, double operations)
{
    return operations * o->batch_size * (double)o->value_size;
}

static double no_bytes(const struct mooncake_options *o)
{
    (void)o;
    return 0;
}

static double batch_bytes(const struct mooncake_options *o)
{
    return values_of(o, (double)o->num_operations + o->warmup_operations);
}

static double concurrent_bytes(const struct mooncake_options *o)
{
    return values_of(o, (double)o->num_operations * o->num_threads);
}

static double mixed_bytes(const struct mooncake_options *o)
{
    return values_of(o, o->num_operations *
                            ((o->read_threads + o->write_threads) / 2.0 + o->write_threads));
}

static double exist_bytes(const struct mooncake_options *o)
{
    uint64_t stored = o->num_operations / 2;
    return (double)stored * EXIST_VALUE;
}

/* A batch's old values go when the new ones are there. */
static double churn_bytes(const struct mooncake_options *o)
{
    return ((double)churn_keys(o) + o->batch_size) * (double)o->value_size;
}

static double restart_bytes(const struct mooncake_options *o)
{
    return o->num_operations * (double)o->value_size;
}

const struct mooncake_test mooncake_tests[] = {
    {"init", {"init"}, true, false, no_bytes, NULL, run_init},
    {"offload", {"offload"}, true, true, batch_bytes, NULL, run_offload},
    {"load", {"load"}, true, true, batch_bytes, NULL, run_load},
    {"concurrent_load",
     {"concurrent_load"},
     true,
     true,
     concurrent_bytes,
     NULL,
     mooncake_concurrent_load},
    {"exist", {"exist_hit", "exist_miss"}, true, false, exist_bytes, NULL, run_exist},
    {"mixed_rw",
     {"mixed_rw_read", "mixed_rw_write"},
     false,
     true,
     mixed_bytes,
     NULL,
     mooncake_mixed_rw},
    {"churn", {"churn"}, false, true, churn_bytes, churn_keys, run_churn},
    {"restart", {"restart"}, false, false, restart_bytes, NULL, run_restart},
    {.name = NULL},
};
