/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/bench/bench_mooncake.h"

#include "common/cleanup.h"
#include "tools/bench/bench_mooncake_mode.h"

#include <ftw.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

struct run {
    const struct mooncake_options *o;
    char dir[512];
    json_t *results; /* of the backend that is measured */
    bool failed;     /* an operation failed or a value was wrong */
};

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st;
    (void)type;
    (void)at;
    return remove(path);
}

static void remove_tree(const struct mooncake_options *o, const char *dir)
{
    if (o->skip_cleanup)
        return;
    if (nftw(dir, remove_one, 32, FTW_DEPTH | FTW_PHYS) && errno != ENOENT)
        fprintf(stderr, "bench-backend: %s is left: %s\n", dir, strerror(errno));
}

/* One test on one target in a new folder. */
static int pass(struct run *run, const struct mooncake_test *test,
                const struct mcfs_backend_ops *ops, struct bench_outcome out[2],
                struct mcfs_error *err)
{
    static unsigned number;
    const struct mooncake_options *o = run->o;
    char dir[600];
    struct bench_target t;
    snprintf(dir, sizeof(dir), "%s/%u-%s", run->dir, number++, test->name);
    struct bench_target_config config = {.ops = ops,
                                         .dir = dir,
                                         .io_engine = o->io_engine,
                                         .capacity = o->capacity,
                                         .value_size = o->value_size,
                                         .direct = o->direct,
                                         .sync_writes = o->flush_between_ops,
                                         .versions = test->versions ? test->versions(o) : 0};
    int r = bench_target_open(&t, &config, err);
    if (!r) {
        r = test->run(o, &t, out, err);
        int closed = bench_target_close(&t, r ? NULL : err);
        r = r ? r : closed;
    }
    remove_tree(o, dir);
    return r ? mcfs_error_prefix(err, "%s on %s", test->name, ops ? ops->name : "a plain file") : 0;
}

static void tell(struct run *run, const char *label, const char *name,
                 const struct bench_outcome *ours, const struct bench_outcome *plain)
{
    json_t *to = bench_outcome_json(ours);
    printf("%-34s ours  ", label);
    bench_outcome_print(ours, stdout);
    if (plain) {
        double ratio = ours->figures[BENCH_MB_PER_S] / plain->figures[BENCH_MB_PER_S];
        printf("%-34s plain ", "");
        bench_outcome_print(plain, stdout);
        printf("%-34s ratio %.3f\n", "", ratio);
        json_object_set_new(to, "plain", bench_outcome_json(plain));
        if (plain->figures[BENCH_MB_PER_S] > 0)
            json_object_set_new(to, "ratio", json_real(ratio));
        run->failed |= plain->errors || plain->wrong;
    }
    fflush(stdout);
    run->failed |= ours->errors || ours->wrong;
    json_object_set_new(run->results, name, to);
}

/* All rounds of a test; who begins takes turns.  suffix: of the names in the result. */
static int measure(struct run *run, const struct mooncake_test *test, const char *backend,
                   const char *suffix, struct mcfs_error *err)
{
    const struct mooncake_options *o = run->o;
    static struct bench_outcome rounds[2][2][64]; /* target, outcome, round */
    const struct mcfs_backend_ops *targets[2] = {mooncake_backend(backend), NULL};
    size_t count = o->plain && test->beside_plain ? 2 : 1;
    for (uint32_t r = 0; r < o->rounds; r++)
        for (size_t i = 0; i < count; i++) {
            size_t side = (i + r) % count;
            struct bench_outcome out[2] = {{.names = NULL}};
            if (pass(run, test, targets[side], out, err))
                return -1;
            rounds[side][0][r] = out[0];
            rounds[side][1][r] = out[1];
        }
    for (size_t f = 0; f < 2 && test->outcomes[f]; f++) {
        struct bench_outcome medians[2];
        char label[100], name[80];
        for (size_t side = 0; side < count; side++)
            bench_outcome_median(&medians[side], rounds[side][f], o->rounds);
        snprintf(name, sizeof(name), "%s%s", test->outcomes[f], suffix);
        snprintf(label, sizeof(label), "%s %s", backend, name);
        tell(run, label, name, &medians[0], count == 2 ? &medians[1] : NULL);
    }
    return 0;
}

static const struct mooncake_test *test_of(const char *name)
{
    const struct mooncake_test *t = mooncake_tests;
    while (strcmp(t->name, name) != 0)
        t++;
    return t;
}

/* The benchmark's own choice of sizes; what the capacity does not hold is left out. */
static int measure_suite(struct run *run, const char *backend, struct mcfs_error *err)
{
    static const struct {
        const char *test;
        uint64_t value_size;
        uint32_t batch_size, operations, warmup, threads;
    } cases[] = {
        {"init", 131072, 8, 1, 0, 1},
        {"offload", 131072, 8, 500, 50, 1},
        {"load", 131072, 8, 500, 50, 1},
        {"offload", 131072, 32, 500, 50, 1},
        {"load", 131072, 32, 500, 50, 1},
        {"offload", 131072, 128, 500, 50, 1},
        {"load", 131072, 128, 500, 50, 1},
        {"offload", 524288, 8, 500, 50, 1},
        {"load", 524288, 8, 500, 50, 1},
        {"offload", 524288, 32, 500, 50, 1},
        {"load", 524288, 32, 500, 50, 1},
        {"offload", 524288, 128, 500, 50, 1},
        {"load", 524288, 128, 500, 50, 1},
        {"concurrent_load", 131072, 32, 200, 0, 4},
        {"concurrent_load", 131072, 32, 200, 0, 8},
        {"exist", 1024, 1, 10000, 0, 1},
    };
    const struct mooncake_options *given = run->o;
    int r = 0;
    for (size_t i = 0; !r && i < MCFS_ARRAY_SIZE(cases); i++) {
        struct mooncake_options o = *given;
        const struct mooncake_test *test = test_of(cases[i].test);
        char suffix[60];
        o.value_size = cases[i].value_size;
        o.batch_size = cases[i].batch_size;
        o.num_operations = cases[i].operations;
        o.warmup_operations = cases[i].warmup;
        o.num_threads = cases[i].threads;
        snprintf(suffix, sizeof(suffix), "_%" PRIu64 "k_%" PRIu32 "_%" PRIu32, o.value_size >> 10,
                 o.batch_size, o.num_threads);
        if (test->bytes(&o) > (double)o.capacity) {
            printf("%s %s%s: left out, --capacity_gb does not hold it\n", backend, test->name,
                   suffix);
            continue;
        }
        run->o = &o;
        r = measure(run, test, backend, suffix, err);
        run->o = given;
    }
    return r;
}

static int measure_backend(struct run *run, const char *backend, struct mcfs_error *err)
{
    const struct mooncake_options *o = run->o;
    if (o->suite)
        return measure_suite(run, backend, err);
    for (const struct mooncake_test *t = mooncake_tests; t->name; t++) {
        bool chosen = strcmp(o->test, "all") == 0 ? t->in_all : strcmp(o->test, t->name) == 0;
        if (chosen && measure(run, t, backend, "", err))
            return -1;
    }
    return 0;
}

static int make_dir(struct run *run, struct mcfs_error *err)
{
    const char *parent = run->o->storage_path;
    int n = snprintf(run->dir, sizeof(run->dir), "%s/mcfs-bench-XXXXXX", parent);
    if (n >= (int)sizeof(run->dir))
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "option 'storage_path' is too long");
    if (mkdir(parent, 0755) && errno != EEXIST)
        return mcfs_fail_errno(err, errno, "%s", parent);
    return mkdtemp(run->dir) ? 0 : mcfs_fail_errno(err, errno, "%s", parent);
}

static json_t *arguments(const struct mooncake_options *o)
{
    return json_pack("{s:s,s:s,s:I,s:I,s:I,s:I,s:I,s:I,s:s,s:s,s:b,s:I}", "backend", o->backend,
                     "test", o->test, "value_size", (json_int_t)o->value_size, "batch_size",
                     (json_int_t)o->batch_size, "num_operations", (json_int_t)o->num_operations,
                     "warmup_operations", (json_int_t)o->warmup_operations, "num_threads",
                     (json_int_t)o->num_threads, "capacity_gb", (json_int_t)o->capacity_gb,
                     "cache_mode", o->cache_mode, "io_engine", o->io_engine, "verify",
                     (int)o->verify, "rounds", (json_int_t)o->rounds);
}

static int run_benchmark(const struct mooncake_options *o)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct run run = {.o = o};
    json_t *all = json_pack("{s:o,s:{}}", "arguments", arguments(o), "backends");
    int r = make_dir(&run, &err);
    for (size_t i = 0; !r && mooncake_backends[i]; i++) {
        const char *backend = mooncake_backends[i];
        if (!o->suite && strcmp(backend, o->backend) != 0)
            continue;
        run.results = json_object();
        json_object_set_new(json_object_get(all, "backends"), backend, run.results);
        r = measure_backend(&run, backend, &err);
    }
    if (r)
        fprintf(stderr, "bench-backend: %s\n", err.msg);
    if (*run.dir && !o->skip_cleanup)
        rmdir(run.dir);
    else if (*run.dir)
        printf("data are left in %s\n", run.dir);
    if (!r) {
        json_dumpf(all, stdout, JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(9));
        putchar('\n');
    }
    json_decref(all);
    return r || run.failed ? 1 : 0;
}

int bench_mooncake(int argc, char **argv)
{
    struct mooncake_options o = {.help = false};
    struct mcfs_error err = MCFS_ERROR_INIT;
    int status = 0;
    if (mooncake_options_parse(&o, argc, argv, &err)) {
        fprintf(stderr, "bench-backend: %s\n", err.msg);
        status = 2;
    } else if (o.help) {
        mooncake_options_help(stdout);
    } else {
        status = run_benchmark(&o);
    }
    mooncake_options_free(&o);
    return status;
}
