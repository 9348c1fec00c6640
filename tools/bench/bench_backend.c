/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures a node-local store: batches of large objects stored and loaded beside fio on the same
 * disk, and recovery of many small objects beside reading the same index files.  Prints one JSON
 * object last.
 */
#include "backends/backends.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/flags.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>

#define READ_BYTES (128u << 10)

struct options {
    char *backend, *dir;
    uint64_t object_bytes, recover;
    uint32_t objects, rounds;
    bool help;
};
#define AT(field) offsetof(struct options, field)
static const struct mcfs_flag flags[] = {
    {"backend", MCFS_FLAG_STRING, AT(backend), "bucket_storage_backend", NULL,
     "descriptor of the backend", 0},
    {"dir", MCFS_FLAG_STRING, AT(dir), "/var/tmp", NULL, "folder on the disk to measure", 0},
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

static struct mcfs_backend *open_store(struct bench *b, const char *name)
{
    char dir[300];
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct mcfs_backend_recovery found;
    snprintf(dir, sizeof(dir), "%s/%s", b->dir, name);
    struct mcfs_backend_config config = {.dir = dir};
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

/* Seconds that fio says a job of the same bytes took. */
static double fio(struct bench *b, const char *how)
{
    char command[1024], line[4096];
    snprintf(command, sizeof(command),
             "fio --name=b --filename='%s/fio' --size=%" PRIu64 " --bs=%" PRIu64
             " --ioengine=psync --output-format=json %s",
             b->dir, b->o.object_bytes * b->o.objects, b->o.object_bytes, how);
    FILE *f = popen(command, "re");
    _cleanup_free_ char *text = NULL;
    size_t len = 0, n;
    while (f && (n = fread(line, 1, sizeof(line), f)) > 0) {
        char *more = realloc(text, len + n + 1);
        if (!more)
            die_errno("memory");
        text = more;
        memcpy(text + len, line, n);
        text[len += n] = 0;
    }
    if (!f || pclose(f) || !text || !strchr(text, '{'))
        die_errno("fio (is it installed?)");
    json_t *o = json_loads(strchr(text, '{'), 0, NULL);
    double ms = json_number_value(
        json_object_get(json_array_get(json_object_get(o, "jobs"), 0), "job_runtime"));
    json_decref(o);
    return ms / 1000;
}

static int by_double(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, size_t n)
{
    qsort(v, n, sizeof(*v), by_double);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

static void row(struct bench *b, const char *name, double *ours, double *other)
{
    double ratio[64];
    for (uint32_t i = 0; i < b->o.rounds; i++)
        ratio[i] = other[i] / ours[i];
    double r = median(ratio, b->o.rounds), x = median(ours, b->o.rounds),
           y = median(other, b->o.rounds);
    json_object_set_new(b->results, name,
                        json_pack("{s:f,s:f,s:f}", "ours_s", x, "other_s", y, "ratio", r));
    printf("%-44s ours %8.4f s  other %8.4f s  ratio %6.3f\n", name, x, y, r);
    fflush(stdout);
}

static void forget_pages(void)
{
    _cleanup_fd_ int fd = open("/proc/sys/vm/drop_caches", O_WRONLY | O_CLOEXEC);
    sync();
    if (fd < 0 || write(fd, "1", 1) != 1)
        die_errno("/proc/sys/vm/drop_caches (needs root)");
}

static void load(struct bench *b, struct mcfs_backend *s, uint64_t version)
{
    _cleanup_free_ char *buf = malloc(b->o.object_bytes);
    for (uint32_t i = 0; i < b->o.objects; i++) {
        char key[64];
        struct mcfs_error err = MCFS_ERROR_INIT;
        struct mcfs_object o = object_of(i, version, 0, key);
        struct mcfs_backend_reader *r = s->ops->reader_open(s, o.tenant, o.key, version, &err);
        if (!r ||
            s->ops->reader_read(r, buf, b->o.object_bytes, 0, &err) != (int64_t)b->o.object_bytes)
            die(&err);
        s->ops->reader_close(r);
    }
}

static void measure_batches(struct bench *b)
{
    double ours[64], other[64], read_ours[64], read_other[64];
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct mcfs_backend *s = open_store(b, "batches");
    _cleanup_free_ char *data = malloc(b->o.object_bytes);
    if (!data)
        die_errno("memory");
    for (uint64_t i = 0; i < b->o.object_bytes; i++)
        data[i] = (char)(i * 7 + i / 251);
    for (uint32_t i = 0; i < b->o.rounds; i++) {
        other[i] = fio(b, "--rw=write --end_fsync=1 --unlink=0");
        int64_t began = mcfs_mono_ns();
        put(s, 0, b->o.objects, i + 1, data, b->o.object_bytes);
        if (s->ops->sync(s, &err))
            die(&err);
        ours[i] = seconds_since(began);
        forget_pages();
        read_other[i] = fio(b, "--rw=read --invalidate=1");
        forget_pages();
        began = mcfs_mono_ns();
        load(b, s, i + 1);
        read_ours[i] = seconds_since(began);
        remove_all(s, b->o.objects, i + 1);
    }
    row(b, "store a batch, sync (vs fio write, fsync)", ours, other);
    row(b, "load a batch, cold (vs fio read, cold)", read_ours, read_other);
    close_store(s);
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
    struct mcfs_backend *s = open_store(b, "recover");
    for (uint64_t i = 0; i < b->o.recover; i += 500)
        put(s, i, (uint32_t)MCFS_MIN(500, b->o.recover - i), i + 1, "0123456789abcdef", 16);
    close_store(s);
    for (uint32_t i = 0; i < b->o.rounds; i++) {
        int64_t began = mcfs_mono_ns();
        uint64_t bytes = read_index_files(b);
        other[i] = seconds_since(began);
        began = mcfs_mono_ns();
        s = open_store(b, "recover");
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
    b.ops = mcfs_backend_find(b.o.backend);
    if (argc > 1 || !b.ops || b.o.rounds < 1 || b.o.rounds > 64 || !b.o.objects) {
        fprintf(stderr, "bench-backend: needs a known backend, objects, 1 to 64 rounds\n");
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
