/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A store at work, and one that is looked at after a crash, for test_power_cut.py.
 *
 *   store_worker work ROOT BACKEND SEED OPERATIONS    in ROOT/store, with staging files in
 * ROOT/staging store_worker check BACKEND                        a directory on each line of
 * standard input
 *
 * BACKEND may end in ":strict": then each put is durable when it has been acknowledged.
 *
 * work says through record_mark (tests/preload/record_calls.c) what it is about to do and, by
 * another mark, that the store has said that it is done:
 *   ?put KEY VERSION SIZE CRC        +put ...      ?remove KEY VERSION     +remove ...
 *   ?rekey KEY VERSION KEY VERSION   +rekey ...    ?sync                   +sync
 * With MCFS_FAIL_AT an operation may fail, and the work goes on; without, that ends it.
 * check answers for each directory "object KEY VERSION SIZE CRC" for all that is there, read to the
 * end, then "end", or "failed WHY".
 */
#include "backends/backends.h"
#include "backends/bucket/bucket.h"
#include "common/cleanup.h"
#include "common/crc32c.h"
#include "common/file.h"
#include "common/log.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define KEYS 12
#define LARGE_MIN (16u << 10)
#define TENANT MCFS_SLICE_LITERAL("default")

static const char *persist; /* "strict", or NULL */

static const struct mcfs_backend_ops *backend_of(char *name)
{
    char *colon = strchr(name, ':');
    if (colon) {
        *colon = 0;
        persist = colon + 1;
    }
    return mcfs_backend_find(name);
}

static struct mcfs_backend_config config_of(const char *dir)
{
    return (struct mcfs_backend_config){.dir = dir,
                                        .bucket_size_limit = 64 << 10,
                                        .bucket_keys_limit = 9,
                                        .single_object_min_bytes = LARGE_MIN,
                                        .capacity_bytes = 4 << 20,
                                        .offset_persist = persist,
                                        .compact_bytes_per_sec = 1 << 30, /* when step() says so */
                                        .flush_interval_ms = 3600000};
}

static void mark(const char *fmt, ...)
{
    static void (*record)(const char *text);
    char text[256];
    va_list list;
    if (!record)
        *(void **)&record = dlsym(RTLD_DEFAULT, "record_mark");
    va_start(list, fmt);
    vsnprintf(text, sizeof(text), fmt, list);
    va_end(list);
    if (record)
        record(text);
}

/* An operation that failed though nothing was made to fail. */
static void failed(const struct mcfs_error *err)
{
    if (getenv("MCFS_FAIL_AT") && err->msg[0])
        return;
    fprintf(stderr, "%s\n", err->msg);
    exit(1);
}

/* ---- at work ---- */

struct object {
    uint64_t version; /* 0: none */
};

struct worker {
    const struct mcfs_backend_ops *ops;
    struct mcfs_backend *store;
    const char *root;
    bool has_buckets;
    struct object objects[KEYS];
    uint64_t next_version, random;
};

static uint32_t random_below(struct worker *w, uint32_t n)
{
    w->random ^= w->random << 13, w->random ^= w->random >> 7, w->random ^= w->random << 17;
    return (uint32_t)(w->random >> 32) % n;
}

static struct mcfs_slice key_of(unsigned i, char text[16])
{
    return mcfs_slice(text, (size_t)snprintf(text, 16, "dir/k%u", i));
}

static void fill(struct worker *w, uint8_t *data, size_t size)
{
    for (size_t i = 0; i < size; i++)
        data[i] = (uint8_t)random_below(w, 256);
}

static void remove_version(struct worker *w, unsigned k, uint64_t version)
{
    char text[16];
    struct mcfs_backend_name name = {.tenant = TENANT, .key = key_of(k, text), .version = version};
    mark("?remove %s %" PRIu64, text, version);
    if (w->ops->remove(w->store, &name, 1))
        failed(&name.err);
    else
        mark("+remove %s %" PRIu64, text, version);
}

/* One to three objects at once; what they replace goes afterwards, as a node does it. */
static void put_some(struct worker *w)
{
    struct mcfs_backend_put items[3] = {0};
    char keys[3][16], staging[3][300];
    uint64_t old[3];
    unsigned n = 1 + random_below(w, 3), first = random_below(w, KEYS);
    for (unsigned i = 0; i < n; i++) {
        unsigned k = (first + i) % KEYS;
        bool large = random_below(w, 4) == 0;
        size_t size = large ? LARGE_MIN + random_below(w, 9000) : random_below(w, 6000);
        uint8_t *data = malloc(size + 1);
        fill(w, data, size);
        old[i] = w->objects[k].version;
        w->objects[k].version = w->next_version++;
        items[i].object = (struct mcfs_object){.tenant = TENANT,
                                               .key = key_of(k, keys[i]),
                                               .version = w->objects[k].version,
                                               .size = size,
                                               .attr = {.mode = 0600, .mtime_ns = 1}};
        uint32_t crc = mcfs_crc32c(0, data, size);
        if (large && random_below(w, 2)) {
            snprintf(staging[i], sizeof(staging[i]), "%s/staging/s%" PRIu64, w->root,
                     w->objects[k].version);
            struct mcfs_error err = MCFS_ERROR_INIT;
            _cleanup_fd_ int fd = open(staging[i], O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
            if (fd < 0 || mcfs_write_full(fd, data, size)) {
                mcfs_fail_errno(&err, errno, "%s", staging[i]);
                failed(&err);
            }
            items[i].staging_path = staging[i];
            free(data);
        } else {
            items[i].data = data;
        }
        mark("?put %s %" PRIu64 " %zu %" PRIu32, keys[i], w->objects[k].version, size, crc);
    }
    bool durable = w->ops->put(w->store, items, n) == 0 && persist;
    for (unsigned i = 0; i < n; i++) {
        if (items[i].err.code == MCFS_OK)
            mark("+put %s %" PRIu64, keys[i], items[i].object.version);
        else
            failed(&items[i].err);
        free((void *)(uintptr_t)items[i].data);
    }
    if (durable) { /* and everything before */
        mark("?sync");
        mark("+sync");
    }
    for (unsigned i = 0; i < n; i++) {
        unsigned k = (first + i) % KEYS;
        if (items[i].err.code != MCFS_OK)
            w->objects[k].version = old[i];
        else if (old[i])
            remove_version(w, k, old[i]);
    }
}

static void rekey(struct worker *w)
{
    unsigned from = random_below(w, KEYS), to = (from + 1 + random_below(w, KEYS - 1)) % KEYS;
    char a[16], b[16];
    struct mcfs_error err = MCFS_ERROR_INIT;
    uint64_t version = w->objects[from].version, old = w->objects[to].version;
    if (!version)
        return;
    uint64_t fresh = w->next_version++;
    struct mcfs_slice from_key = key_of(from, a), to_key = key_of(to, b);
    mark("?rekey %s %" PRIu64 " %s %" PRIu64, a, version, b, fresh);
    if (w->ops->rekey(w->store, TENANT, from_key, version, to_key, fresh, &err)) {
        failed(&err);
        w->objects[from].version = 0; /* under one of the two names */
        return;
    }
    mark("+rekey %s %" PRIu64 " %s %" PRIu64, a, version, b, fresh);
    w->objects[from].version = 0;
    w->objects[to].version = fresh;
    if (old)
        remove_version(w, to, old);
}

static void set_attr(struct worker *w)
{
    unsigned k = random_below(w, KEYS);
    char text[16];
    struct mcfs_attr attr = {.mode = 0644, .mtime_ns = random_below(w, 1000)};
    struct mcfs_error err = MCFS_ERROR_INIT;
    if (w->objects[k].version &&
        w->ops->set_attr(w->store, TENANT, key_of(k, text), w->objects[k].version, &attr, &err))
        failed(&err);
}

/* A bucket is emptied when it is as the look before has seen it. */
static void compact(struct worker *w)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    for (unsigned i = 0; w->has_buckets && i < 2; i++)
        if (store_compact((struct store *)w->store, &err))
            failed(&err);
}

static void step(struct worker *w)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    unsigned k = random_below(w, KEYS), what = random_below(w, 22);
    if (what < 10) {
        put_some(w);
    } else if (what < 12) {
        if (w->objects[k].version)
            remove_version(w, k, w->objects[k].version);
        w->objects[k].version = 0;
    } else if (what < 15) {
        rekey(w);
    } else if (what < 17) {
        set_attr(w);
    } else if (what < 19) {
        compact(w);
    } else {
        mark("?sync");
        if (w->ops->sync(w->store, &err))
            failed(&err);
        else
            mark("+sync");
    }
}

static int work(const char *root, const struct mcfs_backend_ops *ops, uint64_t seed,
                unsigned operations)
{
    char store[300], staging[300];
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct mcfs_backend_recovery found;
    snprintf(store, sizeof(store), "%s/store", root);
    snprintf(staging, sizeof(staging), "%s/staging", root);
    if (mkdir(staging, 0700)) {
        perror(staging);
        return 1;
    }
    struct mcfs_backend_config config = config_of(store);
    struct worker w = {.ops = ops,
                       .root = root,
                       .has_buckets = ops && strcmp(ops->name, "bucket_storage_backend") == 0,
                       .next_version = 1,
                       .random = seed * 0x9e3779b97f4a7c15ULL + 1};
    w.store = w.ops ? w.ops->open(&config, &found, &err) : NULL;
    if (!w.store) {
        failed(&err);
        return 0;
    }
    w.ops = w.store->ops; /* for writing, a layout may have another table */
    mark("open");
    while (operations-- > 0)
        step(&w);
    struct mcfs_backend_stats stats;
    w.ops->stats(w.store, &stats);
    mark("compacted %" PRIu64, stats.compacted_bytes);
    if (w.ops->close(w.store, &err))
        failed(&err);
    else
        mark("closed");
    return 0;
}

/* ---- after the crash ---- */

struct looking {
    const struct mcfs_backend_ops *ops;
    struct mcfs_backend *store;
};

static bool look_at(const struct mcfs_object *o, void *arg)
{
    struct looking *l = arg;
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct mcfs_backend_reader *r =
        l->ops->reader_open(l->store, o->tenant, o->key, o->version, &err);
    uint64_t done = 0;
    uint32_t crc = 0;
    char buf[65536];
    int64_t n = 1;
    if (r && l->ops->reader_verify(r, &err))
        n = -1;
    while (r && n > 0 && (n = l->ops->reader_read(r, buf, sizeof(buf), done, &err)) > 0) {
        crc = mcfs_crc32c(crc, buf, (size_t)n);
        done += (uint64_t)n;
    }
    if (r && n == 0)
        printf("object %.*s %" PRIu64 " %" PRIu64 " %" PRIu32 "\n", MCFS_SLICE_ARG(o->key),
               o->version, done, crc);
    else /* the node looks it up elsewhere, and never sees other bytes */
        printf("broken %.*s %" PRIu64 " %s\n", MCFS_SLICE_ARG(o->key), o->version, err.msg);
    if (r)
        l->ops->reader_close(r);
    return true;
}

static void check(const struct mcfs_backend_ops *ops, const char *dir)
{
    struct mcfs_backend_config config = config_of(dir);
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct mcfs_backend_recovery found;
    struct looking l = {ops, ops->open(&config, &found, &err)};
    if (l.store)
        l.ops = l.store->ops;
    if (l.store && l.ops->scan(l.store, look_at, &l, &err) == 0 && l.ops->close(l.store, &err) == 0)
        printf("end\n");
    else
        printf("failed %s\n", err.msg);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    mcfs_log_init("store_worker", MCFS_LOG_ERROR);
    if (argc == 6 && strcmp(argv[1], "work") == 0)
        return work(argv[2], backend_of(argv[3]), strtoull(argv[4], NULL, 10),
                    (unsigned)atoi(argv[5]));
    const struct mcfs_backend_ops *ops =
        argc == 3 && strcmp(argv[1], "check") == 0 ? backend_of(argv[2]) : NULL;
    if (!ops) {
        fprintf(stderr, "usage: store_worker work ROOT BACKEND SEED OPERATIONS | check BACKEND\n");
        return 2;
    }
    char line[4096];
    while (fgets(line, sizeof(line), stdin)) {
        line[strcspn(line, "\n")] = 0;
        check(ops, line);
    }
    return 0;
}
