/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures the directory in process: memory per key, puts, look-ups one at a time and in batches,
 * fork, checkpoint and restore; prints one JSON object last.   bench-directory KEYS [DIR]
 */
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/hash.h"
#include "master/big_array.h"
#include "master/checkpoint.h"
#include "master/directory.h"

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define BATCH 64
#define ROUNDS 15
#define READS 1000000u

static uint64_t rss_bytes(void)
{
    unsigned long size, resident;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f || fscanf(f, "%lu %lu", &size, &resident) != 2)
        exit(1);
    fclose(f);
    return (uint64_t)resident * 4096;
}

/* 90 bytes, as connectors name blocks. */
static struct mcfs_slice key_of(uint64_t i, char key[128])
{
    int n = snprintf(
        key, 128,
        "meta-llama_Llama-3.1-8B@tp_rank:0@%016" PRIx64 "%016" PRIx64 "%016" PRIx64 "%08" PRIx64,
        (uint64_t)(i * 0x9e3779b97f4a7c15ULL), (uint64_t)(i * 0xc2b2ae3d27d4eb4fULL), ~i, i);
    return mcfs_slice(key, (size_t)n);
}

static struct directory *make(void)
{
    struct directory_config config = directory_alone("127.0.0.1:17001");
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct directory *d = directory_new(&config, &err);
    if (!d) {
        fprintf(stderr, "%s\n", err.msg);
        exit(1);
    }
    return d;
}

static void load(struct directory *d, uint32_t node, uint64_t keys)
{
    char key[128];
    for (uint64_t i = 0; i < keys; i++) {
        struct mcfs_slice k = key_of(i, key), t = mcfs_slice_str(MCFS_DEFAULT_TENANT);
        struct put_start start = {t, k, 4 << 20, node, true};
        struct put_result out;
        uint64_t version;
        if (directory_put_start(d, &start, &version, NULL))
            exit(1);
        struct put_end end = {.tenant = t,
                              .key = k,
                              .version = version,
                              .client = node,
                              .size = 4 << 20,
                              .attr = {0644, 0, 0, 1}};
        if (directory_put_end(d, &end, &out, NULL))
            exit(1);
    }
}

static void count_found(uint32_t i, const struct object_view *v, const struct mcfs_error *err,
                        void *arg)
{
    (void)i, (void)err;
    *(uint64_t *)arg += v != NULL;
}

static double look_up_once(struct directory *d, uint32_t node, uint64_t keys, uint32_t batch,
                           uint64_t rounds)
{
    static char text[BATCH][128];
    struct mcfs_slice names[BATCH], t = mcfs_slice_str(MCFS_DEFAULT_TENANT);
    struct object_view v;
    uint64_t x = 88172645463325252ULL, found = 0;
    int64_t spent = 0;
    for (uint64_t r = 0; r < rounds; r += batch) {
        for (uint32_t i = 0; i < batch; i++) {
            x ^= x << 13, x ^= x >> 7, x ^= x << 17;
            names[i] = key_of(x % keys, text[i]);
        }
        int64_t began = mcfs_mono_ns();
        unsigned slot = directory_enter(d);
        if (batch > 1)
            directory_get_batch(d, t, names, batch, node, count_found, &found);
        else
            found += directory_get(d, t, names[0], node, &v, NULL) == 0;
        directory_leave(d, slot);
        spent += mcfs_mono_ns() - began;
    }
    if (found < rounds)
        exit(1);
    return (double)found * 1e9 / (double)spent;
}

/* What one read costs that waits for the one before, anywhere in so many bytes of huge pages: no
 * look-up whose memory is not in the caches can take less. */
static double random_read_ns(uint64_t bytes)
{
    uint64_t lines = bytes / 64, x = 88172645463325252ULL, at = 0;
    uint64_t *m = big_array_grow(NULL, 0, lines * 64);
    uint32_t *order = malloc(lines * sizeof(*order));
    double best = 1e9;
    if (!m || !order)
        exit(1);
    for (uint64_t i = 0; i < lines; i++)
        order[i] = (uint32_t)i;
    for (uint64_t i = lines - 1; i > 0; i--) { /* one cycle through all */
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        uint64_t j = x % i;
        uint32_t o = order[i];
        order[i] = order[j];
        order[j] = o;
    }
    for (uint64_t i = 0; i < lines; i++)
        m[i * 8] = order[i];
    for (int r = 0; r < ROUNDS; r++) {
        int64_t began = mcfs_mono_ns();
        for (uint32_t i = 0; i < READS; i++)
            at = m[at * 8];
        best = MCFS_MIN(best, (double)(mcfs_mono_ns() - began) / READS);
    }
    big_array_free(m, lines * 64);
    free(order);
    return at < lines ? best : 0;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median of rounds: what else the machine does comes and goes. */
static double look_up(struct directory *d, uint32_t node, uint64_t keys, uint32_t batch, uint64_t n)
{
    double rate[ROUNDS];
    for (unsigned i = 0; i < ROUNDS; i++)
        rate[i] = look_up_once(d, node, keys, batch, n / ROUNDS);
    qsort(rate, ROUNDS, sizeof(*rate), by_value);
    return rate[ROUNDS / 2];
}

static int fork_now(void *arg)
{
    (void)arg;
    pid_t pid = fork();
    if (pid == 0)
        _exit(0);
    return pid;
}

/* fork() of as much memory in 4 KiB pages. */
static double fork_plain_ms(uint64_t bytes)
{
    char *m = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m == MAP_FAILED)
        exit(1);
    madvise(m, bytes, MADV_NOHUGEPAGE);
    for (uint64_t i = 0; i < bytes; i += 4096)
        m[i] = 1;
    int64_t began = mcfs_mono_ns();
    pid_t pid = fork();
    if (pid == 0)
        _exit(0);
    double ms = (double)(mcfs_mono_ns() - began) / 1e6;
    waitpid(pid, NULL, 0);
    munmap(m, bytes);
    return ms;
}

static uint32_t no_nodes(void *arg, struct snap_node *out, uint32_t max)
{
    (void)arg, (void)out, (void)max;
    return 0;
}

static void nothing(void *arg)
{
    (void)arg;
}

int main(int argc, char **argv)
{
    uint64_t keys = argc > 1 ? strtoull(argv[1], NULL, 10) : 1000000;
    const char *dir = argc > 2 ? argv[2] : "/var/tmp/mcfs-bench-snapshots";
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct directory *d = make();
    uint32_t node = directory_client(d, (struct mcfs_id){1, 2});
    uint64_t before = rss_bytes();
    int64_t began = mcfs_mono_ns();
    load(d, node, keys);
    double puts = (double)keys * 1e9 / (double)(mcfs_mono_ns() - began);
    uint64_t memory = rss_bytes() - before;
    double single = look_up(d, node, keys, 1, 3000000),
           batch = look_up(d, node, keys, BATCH, 6000000);

    began = mcfs_mono_ns();
    int pid = directory_exclusive(d, fork_now, NULL);
    double fork_ms = (double)(mcfs_mono_ns() - began) / 1e6;
    waitpid(pid, NULL, 0);
    double plain_ms = fork_plain_ms(memory), read_ns = random_read_ns(memory);

    struct mcfs_object_store *store = snap_store_local_open(dir, &err);
    struct checkpoint_config config = {.directory = d,
                                       .store = store,
                                       .cluster = "bench",
                                       .retention = 1,
                                       .child_timeout_ms = 600000,
                                       .nodes = no_nodes,
                                       .in_child = nothing};
    struct checkpointer *c = store ? checkpointer_start(&config, &err) : NULL;
    char id[SNAP_ID_SIZE];
    struct checkpoint_state state = {.running = true};
    if (!c || checkpointer_request(c, id, &err)) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    while (state.running) {
        usleep(10000);
        checkpointer_state(c, &state);
    }
    checkpointer_stop(c);
    checkpointer_free(c);

    struct directory *copy = make();
    struct restore_result restored;
    began = mcfs_mono_ns();
    if (restore_newest(copy, store, "bench", NULL, &restored, &err) || restored.kept != keys)
        return 1;
    double restore_s = (double)(mcfs_mono_ns() - began) / 1e9;
    snap_repo_delete(store, "bench", id, &err);
    printf("{\"keys\": %" PRIu64
           ", \"key_bytes\": 90, \"rss_per_key\": %.1f, \"puts_per_s\": %.0f, "
           "\"lookups_per_s\": %.0f, \"batched_lookups_per_s\": %.0f, \"random_read_ns\": %.1f, "
           "\"fork_ms\": %.2f, "
           "\"plain_fork_ms\": %.2f, \"checkpoint_s\": %.2f, \"checkpoint_pause_us\": %" PRId64
           ", \"restore_s\": %.2f}\n",
           keys, (double)memory / (double)keys, puts, single, batch, read_ns, fork_ms, plain_ms,
           (double)state.last_duration_ms / 1000, state.last_pause_us, restore_s);
    mcfs_buf_free(&restored.segments);
    mcfs_buf_free(&restored.tasks);
    mcfs_buf_free(&restored.discarded);
    directory_free(d);
    directory_free(copy);
    store->ops->close(store);
    return 0;
}
