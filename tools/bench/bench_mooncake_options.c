/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/backends.h"
#include "common/cleanup.h"
#include "common/flags.h"
#include "tools/bench/bench_mooncake.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define AT(field) offsetof(struct mooncake_options, field)

/* Names and defaults are Mooncake's, but for the last three. */
static const struct mcfs_flag flags[] = {
    {"backend", MCFS_FLAG_STRING, AT(backend), "offset_allocator", NULL,
     "offset_allocator, bucket, file_per_key; all: as --run_all", 0},
    {"value_size", MCFS_FLAG_SIZE, AT(value_size), "131072", NULL, "bytes of a value", 0},
    {"batch_size", MCFS_FLAG_U32, AT(batch_size), "32", NULL, "values of an operation", 0},
    {"num_operations", MCFS_FLAG_U32, AT(num_operations), "1000", NULL,
     "operations of a test, or of each of its threads", 0},
    {"warmup_operations", MCFS_FLAG_U32, AT(warmup_operations), "100", NULL,
     "operations before those that count (offload, load)", 0},
    {"num_threads", MCFS_FLAG_U32, AT(num_threads), "1", NULL, "threads of concurrent_load", 0},
    {"storage_path", MCFS_FLAG_STRING, AT(storage_path), "/tmp/mooncake_bench_data", NULL,
     "folder for the data, which go into a new folder in it", 0},
    {"capacity_gb", MCFS_FLAG_U64, AT(capacity_gb), "20", NULL, "GiB that the store may hold", 0},
    {"run_all", MCFS_FLAG_BOOL, AT(run_all), "false", NULL,
     "all backends with sizes, batches and threads that are given by the benchmark", 0},
    {"skip_cleanup", MCFS_FLAG_BOOL, AT(skip_cleanup), "false", NULL, "leave the data there", 0},
    {"test", MCFS_FLAG_STRING, AT(test), "all", NULL,
     "init, offload, load, concurrent_load, exist; all: these; mixed_rw, churn, restart", 0},
    {"verify", MCFS_FLAG_BOOL, AT(verify), "true", NULL, "compare what is read", 0},
    {"verify_rate", MCFS_FLAG_U64, AT(verify_rate), "1", NULL, "compare one operation in so many",
     0},
    {"verify_warmup_all", MCFS_FLAG_BOOL, AT(verify_warmup_all), "true", NULL,
     "compare all that is read before what counts", 0},
    {"fail_fast", MCFS_FLAG_BOOL, AT(fail_fast), "true", NULL, "end with the first wrong value", 0},
    {"fill_ratio", MCFS_FLAG_DOUBLE, AT(fill_ratio), "0.1", NULL,
     "share of the capacity that is filled first (churn)", 0},
    {"cache_mode", MCFS_FLAG_STRING, AT(cache_mode), "buffered", NULL,
     "buffered, direct (read past the page cache), drop_cache_external (drop it before reading; "
     "root)",
     0},
    {"flush_between_ops", MCFS_FLAG_BOOL, AT(flush_between_ops), "false", NULL,
     "each write is synced, and timed with that", 0},
    {"read_threads", MCFS_FLAG_U32, AT(read_threads), "8", NULL, "readers of mixed_rw", 0},
    {"write_threads", MCFS_FLAG_U32, AT(write_threads), "2", NULL, "writers of mixed_rw", 0},
    {"read_ratio", MCFS_FLAG_DOUBLE, AT(read_ratio), "0.9", NULL,
     "share of operations that read (churn)", 0},
    {"hotset_ratio", MCFS_FLAG_DOUBLE, AT(hotset_ratio), "0.2", NULL,
     "taken for Mooncake's sake: no test uses it, there or here", 0},
    {"pattern", MCFS_FLAG_STRING, AT(pattern_name), "uniform", NULL,
     "how mixed_rw chooses what it reads: sequential, uniform, zipf", 0},
    {"zipf_skew", MCFS_FLAG_DOUBLE, AT(zipf_skew), "1.0", NULL, "exponent of zipf", 0},
    {"report_interval", MCFS_FLAG_U64, AT(report_interval), "100", NULL,
     "operations between two lines of --time_series", 0},
    {"time_series", MCFS_FLAG_BOOL, AT(time_series), "false", NULL, "report while churn runs", 0},
    {"rounds", MCFS_FLAG_U32, AT(rounds), "1", NULL,
     "not Mooncake's: rounds, of whose figures the medians count", 0},
    {"plain", MCFS_FLAG_BOOL, AT(plain), "true", NULL,
     "not Mooncake's: the same with a plain file beside it, in turns", 0},
    {"io_engine", MCFS_FLAG_STRING, AT(io_engine), "auto", NULL,
     "not Mooncake's: auto, uring, plain", 0},
    {"help", MCFS_FLAG_BOOL, AT(help), "false", NULL, "this help", 0},
    MCFS_FLAG_END};

const char *const mooncake_backends[] = {"offset_allocator", "bucket", "file_per_key", NULL};

const struct mcfs_backend_ops *mooncake_backend(const char *name)
{
    char descriptor[64];
    snprintf(descriptor, sizeof(descriptor), "%s_storage_backend", name);
    for (size_t i = 0; mooncake_backends[i]; i++)
        if (strcmp(name, mooncake_backends[i]) == 0)
            return mcfs_backend_find(descriptor);
    return NULL;
}

static int wrong(struct mcfs_error *err, const char *name, const char *value, const char *choices)
{
    return mcfs_fail(err, MCFS_INVALID_PARAMS, "option '%s': '%s' is none of %s", name, value,
                     choices);
}

static int choose_words(struct mooncake_options *o, struct mcfs_error *err)
{
    static const char *const patterns[] = {"sequential", "uniform", "zipf"};
    size_t p = 0;
    while (p < 3 && strcmp(o->pattern_name, patterns[p]) != 0)
        p++;
    if (p == 3)
        return wrong(err, "pattern", o->pattern_name, "sequential, uniform, zipf");
    o->pattern = (enum bench_pattern)p;
    o->suite = o->run_all || strcmp(o->backend, "all") == 0;
    if (!o->suite && !mooncake_backend(o->backend))
        return wrong(err, "backend", o->backend, "offset_allocator, bucket, file_per_key, all");
    const struct mooncake_test *t = mooncake_tests;
    while (t->name && strcmp(o->test, t->name) != 0)
        t++;
    if (!t->name && strcmp(o->test, "all") != 0)
        return wrong(err, "test", o->test,
                     "init, offload, load, concurrent_load, exist, mixed_rw, churn, restart, all");
    o->direct = strcmp(o->cache_mode, "direct") == 0;
    o->drop_cache = strcmp(o->cache_mode, "drop_cache_external") == 0;
    if (strcmp(o->cache_mode, "fadvise_dontneed") == 0)
        return mcfs_fail(err, MCFS_INVALID_PARAMS,
                         "option 'cache_mode': fadvise_dontneed does nothing in Mooncake's "
                         "benchmark and is not offered; drop_cache_external reads cold");
    if (!o->direct && !o->drop_cache && strcmp(o->cache_mode, "buffered") != 0)
        return wrong(err, "cache_mode", o->cache_mode, "buffered, direct, drop_cache_external");
    if (strcmp(o->io_engine, "auto") != 0 && strcmp(o->io_engine, "uring") != 0 &&
        strcmp(o->io_engine, "plain") != 0)
        return wrong(err, "io_engine", o->io_engine, "auto, uring, plain");
    return 0;
}

static int check_numbers(const struct mooncake_options *o, struct mcfs_error *err)
{
    const struct {
        const char *name;
        double value, low, high;
    } ranges[] = {
        {"value_size", (double)o->value_size, 1, 1u << 30},
        {"batch_size", o->batch_size, 1, 1u << 16},
        {"num_operations", o->num_operations, 1, 1u << 30},
        {"warmup_operations", o->warmup_operations, 0, 1u << 30},
        {"num_threads", o->num_threads, 1, 256},
        {"capacity_gb", (double)o->capacity_gb, 1, 1u << 24},
        {"verify_rate", (double)o->verify_rate, 1, 1e18},
        {"fill_ratio", o->fill_ratio, 1e-9, 1},
        {"read_threads", o->read_threads, 1, 256},
        {"write_threads", o->write_threads, 1, 256},
        {"read_ratio", o->read_ratio, 0, 1},
        {"hotset_ratio", o->hotset_ratio, 0, 1},
        {"zipf_skew", o->zipf_skew, 1e-3, 100},
        {"report_interval", (double)o->report_interval, 1, 1e18},
        {"rounds", o->rounds, 1, 64},
        {"batch_size x value_size", (double)o->batch_size * (double)o->value_size, 1, 4.0e9},
    };
    for (size_t i = 0; i < MCFS_ARRAY_SIZE(ranges); i++)
        if (!(ranges[i].value >= ranges[i].low && ranges[i].value <= ranges[i].high))
            return mcfs_fail(err, MCFS_INVALID_PARAMS, "option '%s' must be from %.10g to %.10g",
                             ranges[i].name, ranges[i].low, ranges[i].high);
    return 0;
}

/* Whether the data of what was chosen would fit; a suite leaves out what does not. */
static int check_capacity(const struct mooncake_options *o, struct mcfs_error *err)
{
    for (const struct mooncake_test *t = mooncake_tests; t->name && !o->suite; t++) {
        bool chosen = strcmp(o->test, "all") == 0 ? t->in_all : strcmp(o->test, t->name) == 0;
        if (chosen && t->bytes(o) > (double)o->capacity)
            return mcfs_fail(err, MCFS_INVALID_PARAMS,
                             "test '%s' stores %.2f GiB, more than --capacity_gb=%" PRIu64, t->name,
                             t->bytes(o) / (1 << 30), o->capacity_gb);
    }
    return 0;
}

/* gflags, which Mooncake's program uses, knows --noverify as well. */
static int take_negations(struct mooncake_options *o, int *argc, char **argv,
                          struct mcfs_error *err)
{
    int kept = 1, r = 0;
    for (int i = 1; i < *argc; i++) {
        const char *name = strncmp(argv[i], "--no", 4) == 0 ? argv[i] + 4 : "";
        const struct mcfs_flag *f = mcfs_flags_find(flags, name, strlen(name));
        if (f && f->type == MCFS_FLAG_BOOL)
            r |= mcfs_flags_set(flags, o, name, strlen(name), "false", err);
        else
            argv[kept++] = argv[i];
    }
    *argc = kept;
    return r;
}

int mooncake_options_parse(struct mooncake_options *o, int argc, char **argv,
                           struct mcfs_error *err)
{
    if (mcfs_flags_init(flags, o, err) || take_negations(o, &argc, argv, err) ||
        mcfs_flags_parse_argv(flags, o, &argc, argv, err))
        return -1;
    if (argc > 1)
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "'%s' is not an option: they begin with '--'",
                         argv[1]);
    if (o->help)
        return 0;
    if (check_numbers(o, err) || choose_words(o, err))
        return -1;
    o->capacity = o->capacity_gb << 30;
    if (o->drop_cache && geteuid() != 0)
        return mcfs_fail(err, MCFS_INVALID_PARAMS,
                         "option 'cache_mode': drop_cache_external needs root");
    if (!*o->storage_path)
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "option 'storage_path' needs a folder");
    return check_capacity(o, err);
}

void mooncake_options_help(FILE *to)
{
    mcfs_flags_help(flags, to);
}

void mooncake_options_free(struct mooncake_options *o)
{
    mcfs_flags_free(flags, o);
}
