/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures a master over loopback RPC with two clients: puts, look-ups one at a time and in batches
 * of 64, waiting times with and without a checkpoint running, memory, checkpoint and restore; and
 * the directory in a process of its own.  Prints one JSON object last.
 */
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/file.h"
#include "common/flags.h"
#include "master/client/client.h"
#include "tools/bench/bench_client.h"
#include "tools/bench/bench_figures.h"
#include "tools/bench/bench_process.h"

#include <inttypes.h>
#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>

#define CLIENTS 2
#define PACE_US 100

struct options {
    uint64_t keys, round_ms;
    uint32_t rounds;
    char *address, *dir;
    bool directory, help;
};
#define AT(field) offsetof(struct options, field)
static const struct mcfs_flag flags[] = {
    {"keys", MCFS_FLAG_U64, AT(keys), "1000000", NULL, "objects to load", 0},
    {"rounds", MCFS_FLAG_U32, AT(rounds), "5", NULL, "rounds, of which the median counts", 0},
    {"round_time", MCFS_FLAG_DURATION, AT(round_ms), "2", NULL, "length of a round (s)", 1000},
    {"address", MCFS_FLAG_STRING, AT(address), NULL, NULL,
     "measure this master instead of one of its own (the keys stay in it)", 0},
    {"dir", MCFS_FLAG_STRING, AT(dir), "/var/tmp", NULL, "folder for snapshots", 0},
    {"directory", MCFS_FLAG_BOOL, AT(directory), "true", NULL,
     "measure the directory in process, too", 0},
    {"help", MCFS_FLAG_BOOL, AT(help), "false", NULL, "this help", 0},
    MCFS_FLAG_END};

struct bench {
    struct options o;
    char dir[256], address[64], log[300];
    pid_t pid;
    struct bench_client *clients[CLIENTS];
    struct mcfs_master *master;
    json_t *results;
};

/* What one client does in one measurement. */
struct work {
    struct bench *b;
    struct bench_client *client;
    enum { PUT, GET } what;
    uint32_t batch;
    uint64_t first, keys; /* puts: numbers of the keys */
    uint64_t random;      /* look-ups: state of the random numbers */
    atomic_bool *stop;    /* look-ups end when it is set */
    uint64_t done;        /* objects */
    uint32_t *waits;      /* us of each request, when not NULL */
    uint64_t waits_max, requests;
    bool paced; /* leaves the processors some room, as a cluster does */
    struct mcfs_error err;
    int rc;
};

static int one_request(struct work *w)
{
    uint64_t keys[BENCH_BATCH_MAX];
    if (w->what == PUT) {
        uint32_t n = (uint32_t)MCFS_MIN(w->batch, w->keys - w->done);
        w->rc = bench_client_put(w->client, w->first + w->done, n, &w->err);
        w->done += n;
        return w->rc;
    }
    for (uint32_t i = 0; i < w->batch; i++)
        keys[i] = bench_random(&w->random) % w->b->o.keys;
    w->rc = bench_client_get(w->client, keys, w->batch, &w->err);
    w->done += w->batch;
    return w->rc;
}

static void *run_client(void *arg)
{
    struct work *w = arg;
    while (w->what == PUT ? w->done < w->keys : !atomic_load(w->stop)) {
        int64_t began = mcfs_mono_ns();
        if (one_request(w))
            break;
        if (w->waits && w->requests < w->waits_max)
            w->waits[w->requests] = (uint32_t)((mcfs_mono_ns() - began) / 1000);
        w->requests++;
        if (w->paced)
            usleep(PACE_US);
    }
    return NULL;
}

static int die(struct mcfs_error *err)
{
    fprintf(stderr, "bench-master: %s\n", err->msg);
    exit(1);
}

/* Runs all clients until `until` says so (NULL: until the puts are done).  Returns seconds. */
static double run(struct work *works, atomic_bool *stop, void (*until)(struct bench *b))
{
    pthread_t threads[CLIENTS];
    int64_t began = mcfs_mono_ns();
    for (int i = 0; i < CLIENTS; i++)
        pthread_create(&threads[i], NULL, run_client, &works[i]);
    if (until)
        until(works[0].b);
    atomic_store(stop, true);
    for (int i = 0; i < CLIENTS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < CLIENTS; i++)
        if (works[i].rc)
            die(&works[i].err);
    return (double)(mcfs_mono_ns() - began) / 1e9;
}

static void a_round(struct bench *b)
{
    usleep((useconds_t)b->o.round_ms * 1000);
}

static void a_checkpoint(struct bench *b)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    char id[32], last[32], failed[256];
    bool running = true;
    if (mcfs_master_snapshot_create(b->master, id, &err))
        die(&err);
    while (running) {
        usleep(20000);
        if (mcfs_master_snapshot_state(b->master, &running, last, failed, &err))
            die(&err);
    }
    if (*failed) {
        mcfs_fail(&err, MCFS_INTERNAL_ERROR, "checkpoint: %s", failed);
        die(&err);
    }
}

/* Most memory of the master and its child while a checkpoint runs. */
static uint64_t memory_peak;
static atomic_bool checkpoint_over;
static void *watch_memory(void *arg)
{
    struct bench *b = arg;
    uint64_t before = 0;
    while (!atomic_load(&checkpoint_over)) {
        /* One reading alone may have met the child's beginning or end. */
        uint64_t now = bench_memory(b->pid);
        memory_peak = MCFS_MAX(memory_peak, MCFS_MIN(before, now));
        before = now;
        usleep(50000);
    }
    return NULL;
}

static void a_watched_checkpoint(struct bench *b)
{
    pthread_t thread;
    memory_peak = 0;
    atomic_store(&checkpoint_over, false);
    pthread_create(&thread, NULL, watch_memory, b);
    a_checkpoint(b);
    atomic_store(&checkpoint_over, true);
    pthread_join(thread, NULL);
}

static int by_u32(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static void figure(struct bench *b, const char *name, double value)
{
    json_object_set_new(b->results, name, json_real(value));
    printf("%-44s %14.6g\n", name, value);
    fflush(stdout);
}

static void begin_work(struct bench *b, struct work *works, uint32_t batch, atomic_bool *stop)
{
    atomic_store(stop, false);
    for (int i = 0; i < CLIENTS; i++)
        works[i] = (struct work){.b = b,
                                 .client = b->clients[i],
                                 .what = GET,
                                 .batch = batch,
                                 .random = 88172645463325252ULL + (uint64_t)i,
                                 .stop = stop,
                                 .err = MCFS_ERROR_INIT};
}

static void measure_puts(struct bench *b)
{
    struct work works[CLIENTS];
    atomic_bool stop;
    uint64_t half = b->o.keys / CLIENTS;
    begin_work(b, works, BENCH_BATCH_MAX, &stop);
    for (int i = 0; i < CLIENTS; i++) {
        works[i].what = PUT;
        works[i].first = (uint64_t)i * half;
        works[i].keys = i + 1 < CLIENTS ? half : b->o.keys - works[i].first;
    }
    figure(b, "puts_per_s", (double)b->o.keys / run(works, &stop, NULL));
}

static void measure_gets(struct bench *b, uint32_t batch, const char *name)
{
    double rates[64];
    for (uint32_t i = 0; i < b->o.rounds; i++) {
        struct work works[CLIENTS];
        atomic_bool stop;
        begin_work(b, works, batch, &stop);
        double seconds = run(works, &stop, a_round);
        rates[i] = (double)(works[0].done + works[1].done) / seconds;
    }
    figure(b, name, bench_median(rates, b->o.rounds));
}

enum { P50, P99, P999, MOST, FIGURES };

/* Waiting times of single look-ups at a moderate rate, us. */
static void waits(struct bench *b, void (*until)(struct bench *b), double out[FIGURES])
{
    const uint64_t cap = 4u << 20;
    struct work works[CLIENTS];
    atomic_bool stop;
    uint32_t *all = malloc(CLIENTS * cap * sizeof(*all));
    if (!all)
        abort();
    begin_work(b, works, 1, &stop);
    for (int i = 0; i < CLIENTS; i++) {
        works[i].waits = all + (uint64_t)i * cap;
        works[i].waits_max = cap;
        works[i].paced = true;
    }
    run(works, &stop, until);
    uint64_t n0 = MCFS_MIN(works[0].requests, cap), n1 = MCFS_MIN(works[1].requests, cap);
    memmove(all + n0, works[1].waits, n1 * sizeof(*all));
    uint64_t n = n0 + n1;
    qsort(all, n, sizeof(*all), by_u32);
    const uint64_t places[FIGURES] = {n / 2, n * 99 / 100, n * 999 / 1000, n - 1};
    for (int f = 0; f < FIGURES; f++)
        out[f] = all[places[f]];
    free(all);
}

static void measure_waits(struct bench *b)
{
    static const char *const names[FIGURES] = {"p50", "p99", "p999", "longest"};
    double plain[64][FIGURES], during[64][FIGURES], column[64], ratio[64];
    char name[64];
    for (uint32_t i = 0; i < b->o.rounds; i++) {
        waits(b, a_round, plain[i]);
        waits(b, a_checkpoint, during[i]);
    }
    for (int f = 0; f < FIGURES; f++) {
        for (uint32_t i = 0; i < b->o.rounds; i++)
            column[i] = plain[i][f];
        snprintf(name, sizeof(name), "lookup_%s_us", names[f]);
        figure(b, name, bench_median(column, b->o.rounds));
        for (uint32_t i = 0; i < b->o.rounds; i++) {
            column[i] = during[i][f];
            ratio[i] = during[i][f] / MCFS_MAX(plain[i][f], 1.0);
        }
        snprintf(name, sizeof(name), "lookup_%s_us_during_checkpoint", names[f]);
        figure(b, name, bench_median(column, b->o.rounds));
        snprintf(name, sizeof(name), "lookup_%s_ratio", names[f]);
        figure(b, name, bench_median(ratio, b->o.rounds));
    }
}

static void read_status(struct mcfs_slice name, const struct mcfs_slice *text, int64_t number,
                        void *arg)
{
    struct bench *b = arg;
    if (text)
        return;
    if (mcfs_slice_eq(name, MCFS_SLICE_LITERAL("snapshot_pause_us")))
        figure(b, "checkpoint_pause_us", (double)number);
    else if (mcfs_slice_eq(name, MCFS_SLICE_LITERAL("snapshot_duration_ms")))
        figure(b, "checkpoint_s", (double)number / 1000);
}

static void start_master(struct bench *b, bool restore)
{
    _cleanup_free_ char *program = bench_program("mooncakefs-master", "master");
    char port[32], path[320];
    uint16_t number = bench_free_port();
    struct mcfs_error err = MCFS_ERROR_INIT;
    snprintf(port, sizeof(port), "--rpc_port=%u", number);
    snprintf(path, sizeof(path), "--snapshot_local_path=%s/snapshots", b->dir);
    snprintf(b->address, sizeof(b->address), "127.0.0.1:%u", number);
    const char *argv[] = {program,
                          port,
                          path,
                          "--metrics_port=0",
                          "--enable_snapshot",
                          "--snapshot_interval_seconds=86400",
                          "--snapshot_child_timeout_seconds=3600",
                          restore ? "--enable_snapshot_restore" : NULL,
                          NULL};
    b->pid = bench_start(argv, b->log, &err);
    if (b->pid < 0)
        die(&err);
}

static void read_restored(struct mcfs_slice name, const struct mcfs_slice *text, int64_t number,
                          void *arg)
{
    if (!text && mcfs_slice_eq(name, MCFS_SLICE_LITERAL("restored_objects")))
        *(uint64_t *)arg = (uint64_t)number;
}

/* Waits until the master answers; returns how many objects it restored. */
static uint64_t connect_master(struct bench *b, uint32_t timeout_ms)
{
    uint64_t restored = 0;
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct mcfs_master_config config = {.address = b->address, .timeout_ms = timeout_ms};
    b->master = mcfs_master_open(&config, &err);
    if (!b->master || mcfs_master_status(b->master, read_restored, &restored, &err))
        die(&err);
    return restored;
}

static void connect_clients(struct bench *b)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    for (uint32_t i = 0; i < CLIENTS; i++) {
        b->clients[i] = bench_client_open(b->address, i, &err);
        if (!b->clients[i])
            die(&err);
    }
}

/* Memory, checkpoints and a restart; only for a master of one's own. */
static void measure_own(struct bench *b, uint64_t empty_bytes)
{
    struct work works[CLIENTS];
    atomic_bool stop;
    struct mcfs_error err = MCFS_ERROR_INIT;
    uint64_t full = bench_memory(b->pid);
    figure(b, "bytes_per_object", (double)(full - empty_bytes) / (double)b->o.keys);
    begin_work(b, works, BENCH_BATCH_MAX, &stop);
    works[0].paced = works[1].paced = true;
    run(works, &stop, a_watched_checkpoint);
    figure(b, "checkpoint_extra_memory", (double)(memory_peak - full) / (double)full);

    mcfs_master_close(b->master);
    bench_stop(b->pid);
    int64_t began = mcfs_mono_ns();
    start_master(b, true);
    uint64_t restored = connect_master(b, 600000);
    if (restored != b->o.keys) {
        mcfs_fail(&err, MCFS_INTERNAL_ERROR, "%" PRIu64 " objects of %" PRIu64 " were restored",
                  restored, b->o.keys);
        die(&err);
    }
    figure(b, "restart_with_restore_s", (double)(mcfs_mono_ns() - began) / 1e9);
}

/* The directory in a process of its own: its last line is a JSON object. */
static void measure_directory(struct bench *b)
{
    _cleanup_free_ char *program = bench_program("bench-directory", "master");
    char command[700], line[1024], last[1024] = "";
    snprintf(command, sizeof(command), "'%s' %" PRIu64 " '%s/directory' 2>>'%s'", program,
             b->o.keys, b->dir, b->log);
    FILE *f = popen(command, "re");
    while (f && fgets(line, sizeof(line), f))
        memcpy(last, line, sizeof(last));
    if (!f || pclose(f) != 0) {
        struct mcfs_error err = MCFS_ERROR_INIT;
        mcfs_fail(&err, MCFS_INTERNAL_ERROR, "%s failed, see %s", program, b->log);
        die(&err);
    }
    printf("in process: %s", last);
    json_t *o = json_loads(last, 0, NULL);
    if (o)
        json_object_set_new(b->results, "in_process", o);
}

static void remove_dir(const char *dir)
{
    char command[320];
    snprintf(command, sizeof(command), "rm -rf '%s'", dir);
    if (system(command))
        fprintf(stderr, "bench-master: %s is left\n", dir);
}

int main(int argc, char **argv)
{
    struct bench b = {.results = json_object()};
    struct mcfs_error err = MCFS_ERROR_INIT;
    if (mcfs_flags_init(flags, &b.o, &err) || mcfs_flags_parse_argv(flags, &b.o, &argc, argv, &err))
        die(&err);
    if (b.o.help) {
        mcfs_flags_help(flags, stdout);
        json_decref(b.results);
        mcfs_flags_free(flags, &b.o);
        return 0;
    }
    if (argc > 1 || b.o.keys < BENCH_BATCH_MAX * CLIENTS || b.o.rounds < 1 || b.o.rounds > 64) {
        fprintf(stderr, "bench-master: at least 128 keys, 1 to 64 rounds, and no other words\n");
        return 2;
    }
    snprintf(b.dir, sizeof(b.dir), "%s/mcfs-bench-XXXXXX", b.o.dir);
    if (!mkdtemp(b.dir)) {
        mcfs_fail_errno(&err, errno, "%s", b.dir);
        die(&err);
    }
    snprintf(b.log, sizeof(b.log), "%s/log", b.dir);
    json_object_set_new(b.results, "keys", json_integer((json_int_t)b.o.keys));
    if (b.o.directory)
        measure_directory(&b);
    if (b.o.address)
        snprintf(b.address, sizeof(b.address), "%s", b.o.address);
    else
        start_master(&b, false);
    connect_master(&b, 10000);
    uint64_t empty = b.pid ? bench_memory(b.pid) : 0;
    connect_clients(&b);
    measure_puts(&b);
    measure_gets(&b, 1, "lookups_per_s");
    measure_gets(&b, BENCH_BATCH_MAX, "batched_lookups_per_s");
    measure_waits(&b);
    if (mcfs_master_status(b.master, read_status, &b, &err))
        die(&err);
    if (b.pid)
        measure_own(&b, empty);
    for (int i = 0; i < CLIENTS; i++)
        bench_client_close(b.clients[i]);
    mcfs_master_close(b.master);
    if (b.pid)
        bench_stop(b.pid);
    remove_dir(b.dir);
    json_dumpf(b.results, stdout, JSON_PRESERVE_ORDER);
    putchar('\n');
    json_decref(b.results);
    mcfs_flags_free(flags, &b.o);
    return 0;
}
