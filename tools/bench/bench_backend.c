/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures a node-local store: batches of large objects stored and loaded beside fio on the same
 * disk, with each I/O engine in turn, and recovery of many small objects beside reading the same
 * index files.  Prints one JSON object last.
 *
 * fio does as the store does: new files, as many, with the same engine, past the page cache where
 * the store goes past it; and its files are durable at the end as the store's are.
 *
 * "mooncake" as the first word is another benchmark, by Mooncake's options: bench_mooncake.h.
 */
#include "backends/backends.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/flags.h"
#include "tools/bench/bench_figures.h"
#include "tools/bench/bench_fio.h"
#include "tools/bench/bench_mooncake_mode.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>

#define READ_BYTES (128u << 10)

/* From so many bytes a batch of buckets goes past the page cache. */
#define BUCKETS_DIRECT_MIN (16ull << 20)

struct options {
    char *backend, *dir, *engines;
    uint64_t object_bytes, recover;
    uint32_t objects, rounds;
    bool help;
};
#define AT(field) offsetof(struct options, field)
static const struct mcfs_flag flags[] = {
    {"backend", MCFS_FLAG_STRING, AT(backend), "bucket_storage_backend", NULL,
     "descriptor of the backend", 0},
    {"dir", MCFS_FLAG_STRING, AT(dir), "/var/tmp", NULL, "folder on the disk to measure", 0},
    {"io_engines", MCFS_FLAG_STRING, AT(engines), "uring,plain", NULL,
     "engines to measure: uring, plain, or both with a comma between them", 0},
    {"objects", MCFS_FLAG_U32, AT(objects), "64", NULL, "objects of a batch", 0},
    {"object_size", MCFS_FLAG_SIZE, AT(object_bytes), "4M", NULL, "bytes of each", 0},
    {"recover", MCFS_FLAG_U64, AT(recover), "1000000", NULL,
     "small objects in the store that is recovered; 0: leave recovery out", 0},
    {"rounds", MCFS_FLAG_U32, AT(rounds), "5", NULL, "rounds, of which the median counts", 0},
    {"help", MCFS_FLAG_BOOL, AT(help), "false", NULL, "this help", 0},
    MCFS_FLAG_END};

struct bench {
    struct options o;
    const struct mcfs_backend_ops *ops;
    char dir[256];
    json_t *results;
};

static void die(const struct mcfs_error *err)
{
    fprintf(stderr, "bench-backend: %s\n", err->msg);
    exit(1);
}

static void die_errno(const char *what)
{
    fprintf(stderr, "bench-backend: %s: %s\n", what, strerror(errno));
    exit(1);
}

static struct mcfs_backend *open_store(struct bench *b, const char *name, const char *engine)
{
    char dir[300];
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct mcfs_backend_recovery found;
    snprintf(dir, sizeof(dir), "%s/%s", b->dir, name);
    struct mcfs_backend_config config = {.dir = dir, .io_engine = engine};
    struct mcfs_backend *s = b->ops->open(&config, &found, &err);
    if (!s)
        die(&err);
    return s;
}

static void close_store(struct mcfs_backend *s)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    if (s->ops->close(s, &err))
        die(&err);
}

static struct mcfs_object object_of(uint64_t i, uint64_t version, uint64_t size, char key[64])
{
    int n = snprintf(key, 64, "bench/%02" PRIx64 "/%016" PRIx64, i % 251,
                     (uint64_t)(i * 0x9e3779b97f4a7c15ULL));
    return (struct mcfs_object){.tenant = mcfs_slice_str(MCFS_DEFAULT_TENANT),
                                .key = mcfs_slice(key, (size_t)n),
                                .version = version,
                                .size = size,
                                .attr = {0644, 0, 0, 1}};
}

/* Puts objects numbered first..first+n-1, all with the same bytes. */
static void put(struct mcfs_backend *s, uint64_t first, uint32_t n, uint64_t version,
                const void *data, uint64_t size)
{
    _cleanup_free_ struct mcfs_backend_put *items = calloc(n, sizeof(*items));
    _cleanup_free_ char(*keys)[64] = malloc(n * sizeof(*keys));
    if (!items || !keys)
        die_errno("memory");
    for (uint32_t i = 0; i < n; i++)
        items[i] = (struct mcfs_backend_put){.object = object_of(first + i, version, size, keys[i]),
                                             .data = data};
    if (s->ops->put(s, items, n))
        for (uint32_t i = 0; i < n; i++)
            if (items[i].err.code)
                die(&items[i].err);
}

static void remove_all(struct mcfs_backend *s, uint32_t n, uint64_t version)
{
    for (uint32_t i = 0; i < n; i++) {
        char key[64];
        struct mcfs_object o = object_of(i, version, 0, key);
        struct mcfs_backend_name name = {.tenant = o.tenant, .key = o.key, .version = version};
        if (s->ops->remove(s, &name, 1))
            die(&name.err);
    }
}

static double seconds_since(int64_t began_ns)
{
    return (double)(mcfs_mono_ns() - began_ns) / 1e9;
}

static void row(struct bench *b, const char *name, double *ours, double *other)
{
    double ratio[64];
    for (uint32_t i = 0; i < b->o.rounds; i++)
        ratio[i] = other[i] / ours[i];
    double r = bench_median(ratio, b->o.rounds), x = bench_median(ours, b->o.rounds),
           y = bench_median(other, b->o.rounds);
    json_object_set_new(b->results, name,
                        json_pack("{s:f,s:f,s:f}", "ours_s", x, "other_s", y, "ratio", r));
    printf("%-52s ours %8.4f s  other %8.4f s  ratio %6.3f\n", name, x, y, r);
    fflush(stdout);
}

static void forget_pages(void)
{
    _cleanup_fd_ int fd = open("/proc/sys/vm/drop_caches", O_WRONLY | O_CLOEXEC);
    sync();
    if (fd < 0 || write(fd, "1", 1) != 1)
        die_errno("/proc/sys/vm/drop_caches (needs root)");
}

/* Reads all objects as one batch, past the page cache, into memory that is there already. */
static void load(struct bench *b, struct mcfs_backend *s, uint64_t version, char *buf)
{
    _cleanup_free_ struct mcfs_backend_get *items = calloc(b->o.objects, sizeof(*items));
    _cleanup_free_ char(*keys)[64] = malloc(b->o.objects * sizeof(*keys));
    if (!items || !keys)
        die_errno("memory");
    for (uint32_t i = 0; i < b->o.objects; i++) {
        struct mcfs_object o = object_of(i, version, 0, keys[i]);
        items[i] = (struct mcfs_backend_get){.tenant = o.tenant,
                                             .key = o.key,
                                             .version = version,
                                             .buf = buf + i * b->o.object_bytes,
                                             .len = b->o.object_bytes,
                                             .direct = true};
    }
    s->ops->get(s, items, b->o.objects);
    for (uint32_t i = 0; i < b->o.objects; i++) {
        if (items[i].err.code)
            die(&items[i].err);
        if (items[i].got != b->o.object_bytes) {
            errno = EIO;
            die_errno("an object is short");
        }
    }
}

static char *memory(uint64_t bytes)
{
    uint64_t whole = (bytes + 4095) & ~4095ull;
    char *data = aligned_alloc(4096, whole);
    if (!data)
        die_errno("memory");
    for (uint64_t i = 0; i < whole; i++)
        data[i] = (char)(i * 7 + i / 251);
    return data;
}

/* A store with one engine, and its times. */
struct side {
    const char *engine;
    struct mcfs_backend *store;
    struct bench_fio fio[2]; /* beside which it is written and read */
    double write[64], write_fio[64], read[64], read_fio[64];
};

static void side_open(struct bench *b, struct side *side, const char *engine)
{
    static char dirs[2][300];
    bool buckets = strcmp(b->ops->name, "bucket_storage_backend") == 0,
         one_file = strcmp(b->ops->name, "offset_allocator_storage_backend") == 0;
    uint64_t bytes = b->o.object_bytes * b->o.objects;
    char *dir = dirs[strcmp(engine, "uring") == 0];
    struct mcfs_backend_stats stats;
    snprintf(dir, sizeof(dirs[0]), "%s/fio-%s", b->dir, engine);
    side->engine = engine;
    side->store = open_store(b, engine, engine);
    side->store->ops->stats(side->store, &stats);
    if (strcmp(stats.io_engine, engine) != 0) {
        fprintf(stderr, "bench-backend: the I/O engine %s cannot be had here\n", engine);
        exit(1);
    }
    side->fio[0] = (struct bench_fio){.dir = dir,
                                      .engine = engine,
                                      .files = one_file ? 1 : b->o.objects,
                                      .bytes = bytes,
                                      .request = b->o.object_bytes,
                                      .direct = buckets && bytes >= BUCKETS_DIRECT_MIN};
    side->fio[1] = side->fio[0];
    side->fio[1].direct = true;
}

static void side_round(struct bench *b, struct side *side, uint32_t i, const char *data, char *buf)
{
    struct mcfs_backend *s = side->store;
    struct mcfs_error err = MCFS_ERROR_INIT;
    side->write_fio[i] = bench_fio_write(&side->fio[0]);
    int64_t began = mcfs_mono_ns();
    put(s, 0, b->o.objects, i + 1, data, b->o.object_bytes);
    if (s->ops->sync(s, &err))
        die(&err);
    side->write[i] = seconds_since(began);
    forget_pages();
    side->read_fio[i] = bench_fio_read(&side->fio[1]);
    forget_pages();
    began = mcfs_mono_ns();
    load(b, s, i + 1, buf);
    side->read[i] = seconds_since(began);
    for (uint32_t n = 0; n < b->o.objects; n++)
        if (memcmp(buf + n * b->o.object_bytes, data, b->o.object_bytes) != 0) {
            errno = EIO;
            die_errno("an object was read with other bytes");
        }
    remove_all(s, b->o.objects, i + 1);
    if (s->ops->sync(s, &err))
        die(&err);
}

static void measure_batches(struct bench *b)
{
    static const char *const engines[] = {"uring", "plain"};
    static struct side sides[2];
    size_t count = 0;
    _cleanup_free_ char *data = memory(b->o.object_bytes),
                        *buf = memory(b->o.object_bytes * b->o.objects);
    for (size_t e = 0; e < 2; e++)
        if (strstr(b->o.engines, engines[e]))
            side_open(b, &sides[count++], engines[e]);
    for (uint32_t i = 0; i < b->o.rounds; i++)
        for (size_t e = 0; e < count; e++)
            side_round(b, &sides[e], i, data, buf);
    for (size_t e = 0; e < count; e++) {
        struct side *side = &sides[e];
        char name[128];
        snprintf(name, sizeof(name), "store a batch, sync (%s, vs fio%s)", side->engine,
                 side->fio[0].direct ? ", O_DIRECT" : "");
        row(b, name, side->write, side->write_fio);
        snprintf(name, sizeof(name), "load a batch, cold (%s, vs fio, O_DIRECT)", side->engine);
        row(b, name, side->read, side->read_fio);
        close_store(side->store);
    }
}

/* Reads every file of the store that is not a bucket's data. */
static uint64_t read_index_files(struct bench *b)
{
    char path[600];
    uint64_t sum = 0;
    static char buf[READ_BYTES];
    snprintf(path, sizeof(path), "%s/recover", b->dir);
    _cleanup_dir_ DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d));) {
        const char *dot = strrchr(e->d_name, '.');
        if (!dot ||
            (strcmp(dot, ".meta") != 0 && strcmp(dot, ".sum") != 0 && strcmp(dot, ".journal") != 0))
            continue;
        snprintf(path, sizeof(path), "%s/recover/%s", b->dir, e->d_name);
        _cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC);
        for (ssize_t n; fd >= 0 && (n = read(fd, buf, sizeof(buf))) > 0;)
            sum += (uint64_t)n;
    }
    return sum;
}

static void measure_recovery(struct bench *b)
{
    double ours[64], other[64];
    struct mcfs_backend *s = open_store(b, "recover", NULL);
    for (uint64_t i = 0; i < b->o.recover; i += 500)
        put(s, i, (uint32_t)MCFS_MIN(500, b->o.recover - i), i + 1, "0123456789abcdef", 16);
    close_store(s);
    for (uint32_t i = 0; i < b->o.rounds; i++) {
        int64_t began = mcfs_mono_ns();
        uint64_t bytes = read_index_files(b);
        other[i] = seconds_since(began);
        began = mcfs_mono_ns();
        s = open_store(b, "recover", NULL);
        ours[i] = seconds_since(began);
        struct mcfs_backend_stats stats;
        s->ops->stats(s, &stats);
        if (stats.objects != b->o.recover) {
            fprintf(stderr, "bench-backend: %" PRIu64 " objects were recovered\n", stats.objects);
            exit(1);
        }
        json_object_set_new(b->results, "index_file_bytes", json_integer((json_int_t)bytes));
        json_object_set_new(b->results, "index_memory_bytes",
                            json_integer((json_int_t)stats.index_bytes));
        close_store(s);
    }
    row(b, "recover the small objects (vs cat of the index)", ours, other);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "mooncake") == 0)
        return bench_mooncake(argc - 1, argv + 1);
    struct bench b = {.results = json_object()};
    struct mcfs_error err = MCFS_ERROR_INIT;
    if (mcfs_flags_init(flags, &b.o, &err) || mcfs_flags_parse_argv(flags, &b.o, &argc, argv, &err))
        die(&err);
    if (b.o.help) {
        mcfs_flags_help(flags, stdout);
        printf(
            "\nmooncake [OPTION...]: the workloads of Mooncake's storage_backend_bench by its own "
            "options;\n  mooncake --help: which\n");
        json_decref(b.results);
        mcfs_flags_free(flags, &b.o);
        return 0;
    }
    b.ops = mcfs_backend_find(b.o.backend);
    if (argc > 1 || !b.ops || !(strstr(b.o.engines, "uring") || strstr(b.o.engines, "plain")) ||
        b.o.rounds < 1 || b.o.rounds > 64 || !b.o.objects) {
        fprintf(stderr,
                "bench-backend: needs a known backend and engine, objects, 1 to 64 rounds\n");
        return 2;
    }
    snprintf(b.dir, sizeof(b.dir), "%s/mcfs-bench-XXXXXX", b.o.dir);
    if (!mkdtemp(b.dir))
        die_errno(b.dir);
    measure_batches(&b);
    if (b.o.recover)
        measure_recovery(&b);
    char command[300];
    snprintf(command, sizeof(command), "rm -rf '%s'", b.dir);
    if (system(command))
        fprintf(stderr, "bench-backend: %s is left\n", b.dir);
    json_dumpf(b.results, stdout, JSON_PRESERVE_ORDER);
    putchar('\n');
    json_decref(b.results);
    mcfs_flags_free(flags, &b.o);
    return 0;
}
