/* SPDX-License-Identifier: Apache-2.0 */
/* Compaction of thin buckets: space and files come back, and nobody can tell otherwise. */
#include "backends/backends.h"
#include "backends/bucket/bucket.h"
#include "common/crc32c.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define TENANT MCFS_SLICE_LITERAL("default")
#define SIZE 3000
#define KEYS_LIMIT 16

static const struct mcfs_backend_ops *ops;
static char dir[64];

static void setup(void)
{
    ops = mcfs_backend_find("bucket_storage_backend");
    strcpy(dir, "/tmp/mcfs-compact-XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
}

static void teardown(void)
{
    char command[128];
    snprintf(command, sizeof(command), "rm -rf %s", dir);
    cr_assert_eq(system(command), 0);
}

TestSuite(compact, .init = setup, .fini = teardown, .timeout = 200);

static struct mcfs_backend *open_every(uint32_t ms, const char *policy)
{
    struct mcfs_backend_config config = {.dir = dir,
                                         .bucket_keys_limit = KEYS_LIMIT,
                                         .single_object_min_bytes = 100000,
                                         .compact_bytes_per_sec = 1ull << 40,
                                         .eviction_policy = policy,
                                         .flush_interval_ms = ms};
    struct mcfs_backend_recovery found;
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct mcfs_backend *b = ops->open(&config, &found, &err);
    cr_assert_not_null(b, "%s", err.msg);
    cr_assert_eq(found.set_aside_files, 0u);
    return b;
}

static struct mcfs_backend *open_store(void)
{
    return open_every(3600000, NULL);
}

static void close_store(struct mcfs_backend *b)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    cr_assert_eq(ops->close(b, &err), 0, "%s", err.msg);
}

/* Two rounds: a bucket is taken when it has lost nothing since the look before. */
static void compact(struct mcfs_backend *b)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    for (int i = 0; i < 2; i++)
        cr_assert_eq(store_compact((struct store *)b, &err), 0, "%s", err.msg);
}

static struct mcfs_slice key_of(int k, char text[24])
{
    return mcfs_slice(text, (size_t)snprintf(text, 24, "k%d", k));
}

static void fill(uint64_t seed, unsigned char *data)
{
    for (size_t i = 0; i < SIZE; i++)
        data[i] = (unsigned char)(seed * 31 + i * 7 + i / 256);
}

static bool put(struct mcfs_backend *b, int k, uint64_t version)
{
    char key[24];
    unsigned char data[SIZE];
    fill(version, data);
    struct mcfs_backend_put item = {.object = {.tenant = TENANT,
                                               .key = key_of(k, key),
                                               .version = version,
                                               .size = SIZE,
                                               .attr = {0640, 1, 2, 3},
                                               .data_type = 3},
                                    .data = data};
    return ops->put(b, &item, 1) == 0;
}

static bool del(struct mcfs_backend *b, int k, uint64_t version)
{
    char key[24];
    struct mcfs_backend_name n = {.tenant = TENANT, .key = key_of(k, key), .version = version};
    return ops->remove(b, &n, 1) == 0;
}

static struct mcfs_backend_reader *reader(struct mcfs_backend *b, int k, uint64_t version)
{
    char key[24];
    return ops->reader_open(b, TENANT, key_of(k, key), version, NULL);
}

/* 1: whole, 0: not there, -1: other bytes. */
static int look(struct mcfs_backend *b, int k, uint64_t version, uint64_t seed)
{
    unsigned char got[SIZE + 1], want[SIZE];
    struct mcfs_backend_reader *r = reader(b, k, version);
    if (!r)
        return 0;
    fill(seed, want);
    bool ok = ops->reader_read(r, got, sizeof(got), 0, NULL) == SIZE &&
              memcmp(got, want, SIZE) == 0 && ops->reader_verify(r, NULL) == 0;
    ops->reader_close(r);
    return ok ? 1 : -1;
}

static size_t files_with(const char *suffix)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    size_t n = 0;
    while ((e = readdir(d))) {
        const char *dot = strchr(e->d_name, '.');
        n += dot && strcmp(dot + 1, suffix) == 0;
    }
    closedir(d);
    return n;
}

static struct mcfs_backend_stats stats(struct mcfs_backend *b)
{
    struct mcfs_backend_stats s;
    ops->stats(b, &s);
    return s;
}

static bool is_as_put(const struct mcfs_object *o, void *arg)
{
    unsigned char data[SIZE];
    fill(o->version, data);
    cr_assert_eq(o->attr.mode, 0640u);
    cr_assert_eq(o->attr.mtime_ns, 3);
    cr_assert_eq(o->data_type, 3);
    cr_assert(o->has_crc);
    cr_assert_eq(o->crc32c, mcfs_crc32c(0, data, SIZE));
    ++*(int *)arg;
    return true;
}

/* `n` buckets; of each the objects whose number is no multiple of `keep` are removed. */
static struct mcfs_backend *thinned(int n, int keep, const char *policy)
{
    struct mcfs_backend *b = open_every(3600000, policy);
    for (int k = 0; k < n * KEYS_LIMIT; k++)
        cr_assert(put(b, k, (uint64_t)k + 1));
    for (int k = 0; k < n * KEYS_LIMIT; k++)
        if (k % keep)
            cr_assert(del(b, k, (uint64_t)k + 1));
    return b;
}

static void all_there(struct mcfs_backend *b, int n, int keep)
{
    int count = 0;
    for (int k = 0; k < n * KEYS_LIMIT; k++)
        cr_assert_eq(look(b, k, (uint64_t)k + 1, (uint64_t)k + 1), k % keep == 0);
    cr_assert_eq(ops->scan(b, is_as_put, &count, NULL), 0);
    cr_assert_eq(count, n * KEYS_LIMIT / keep);
}

Test(compact, thin_buckets_become_one_and_objects_are_what_they_were)
{
    struct mcfs_backend *b = thinned(8, 4, NULL);
    cr_assert_eq(stats(b).buckets, 8u);
    compact(b);
    all_there(b, 8, 4);
    cr_assert_eq(stats(b).compactions, 8u);
    cr_assert_eq(stats(b).compacted_bytes, 8u * 4 * SIZE);
    cr_assert_eq(files_with("bucket"), 2u, "%zu", files_with("bucket"));
    cr_assert_eq(files_with("sum") + files_with("journal"), 2u);
    close_store(b);
    b = open_store();
    all_there(b, 8, 4);
    cr_assert_eq(stats(b).buckets, 2u);
    cr_assert_lt(stats(b).dead_bytes, 4096u * 2);
    compact(b);
    all_there(b, 8, 4);
    close_store(b);
}

Test(compact, full_buckets_and_a_small_one_alone_stay)
{
    struct mcfs_backend *b = open_store();
    for (int k = 0; k < KEYS_LIMIT; k++)
        cr_assert(put(b, k, (uint64_t)k + 1));
    cr_assert(put(b, KEYS_LIMIT, KEYS_LIMIT + 1));
    close_store(b);
    b = open_store();
    compact(b);
    cr_assert_eq(stats(b).compactions, 0u);
    close_store(b);
}

Test(compact, a_reader_goes_on_at_the_old_place)
{
    struct mcfs_backend *b = thinned(2, 8, NULL);
    unsigned char got[SIZE], want[SIZE];
    struct mcfs_backend_reader *r = reader(b, 8, 9);
    compact(b);
    ops->sync(b, NULL);
    fill(9, want);
    cr_assert_eq(ops->reader_read(r, got, SIZE, 0, NULL), SIZE);
    cr_assert_arr_eq(got, want, SIZE);
    cr_assert(del(b, 8, 9));
    cr_assert_eq(ops->reader_read(r, got, SIZE, 0, NULL), SIZE);
    cr_assert_arr_eq(got, want, SIZE);
    ops->reader_close(r);
    cr_assert_eq(look(b, 8, 9, 9), 0);
    close_store(b);
    b = open_store();
    cr_assert_eq(stats(b).objects, 3u);
    close_store(b);
}

Test(compact, the_order_of_eviction_stays)
{
    static const char *const policies[] = {"fifo", "lru"};
    for (int p = 0; p < 2; p++) {
        struct mcfs_backend *b = thinned(2, 4, policies[p]);
        cr_assert(put(b, 99, 99));
        cr_assert_eq(look(b, 0, 1, 1), 1);
        compact(b);
        struct mcfs_backend_victim v[16];
        struct mcfs_backend_cursor at = {0};
        static const uint64_t order[2][9] = {{1, 5, 9, 13, 17, 21, 25, 29, 99},
                                             {5, 9, 13, 17, 21, 25, 29, 99, 1}};
        cr_assert_eq(ops->evict_choose(b, &at, UINT64_MAX, v, 16, NULL), 9);
        for (int i = 0; i < 9; i++)
            cr_assert_eq(v[i].version, order[p][i]);
        ops->evict_end(b, v, 9);
        cr_assert_gt(stats(b).compactions, 0u);
        close_store(b);
        teardown();
        setup();
    }
}

Test(compact, what_is_damaged_stays_and_is_marked)
{
    struct mcfs_backend *b = thinned(1, 8, NULL);
    struct mcfs_backend_place place;
    char key[24], path[700];
    cr_assert_eq(ops->locate(b, TENANT, key_of(8, key), 9, &place, NULL), 0);
    snprintf(path, sizeof(path), "%s/%s", dir, place.file);
    int fd = open(path, O_RDWR);
    cr_assert_eq(pwrite(fd, "XXXX", 4, (off_t)place.offset + 100), 4);
    close(fd);
    compact(b);
    cr_assert_eq(look(b, 0, 1, 1), 1);
    struct mcfs_error err = MCFS_ERROR_INIT;
    cr_assert_null(ops->reader_open(b, TENANT, key_of(8, key), 9, &err));
    cr_assert_eq(err.code, MCFS_CHECKSUM_MISMATCH);
    cr_assert_eq(stats(b).checksum_errors, 1u);
    cr_assert_eq(stats(b).compacted_bytes, (uint64_t)SIZE);
    close_store(b);
}

Test(compact, what_is_held_back_by_an_eviction_stays_where_it_is)
{
    struct mcfs_backend *b = thinned(2, 4, "fifo");
    struct mcfs_backend_victim v[2];
    struct mcfs_backend_cursor at = {0};
    cr_assert_eq(ops->evict_choose(b, &at, 2 * SIZE, v, 2, NULL), 2);
    cr_assert_eq(ops->evict_hold(b, v, 2), 2u);
    compact(b);
    cr_assert_eq(stats(b).compacted_bytes, 6u * SIZE);
    v[0].gone = true;
    cr_assert_eq(ops->evict_end(b, v, 2), 0u);
    for (int again = 0; again < 2; again++) {
        cr_assert_eq(look(b, 0, 1, 1), 0);
        for (int k = 4; k < 2 * KEYS_LIMIT; k += 4)
            cr_assert_eq(look(b, k, (uint64_t)k + 1, (uint64_t)k + 1), 1);
        close_store(b);
        b = open_store();
    }
    close_store(b);
}

struct listed {
    char *tenant, *key;
    size_t tenant_len, key_len;
    uint64_t version, size;
    uint32_t crc;
};

struct listing {
    struct mcfs_backend *b;
    struct listed *v;
    size_t n;
};

static uint32_t crc_of(struct mcfs_backend *b, const struct listed *l)
{
    struct mcfs_backend_reader *r = ops->reader_open(
        b, mcfs_slice(l->tenant, l->tenant_len), mcfs_slice(l->key, l->key_len), l->version, NULL);
    cr_assert_not_null(r);
    unsigned char *data = malloc(l->size + 1);
    cr_assert_eq(ops->reader_read(r, data, l->size + 1, 0, NULL), (int64_t)l->size);
    uint32_t crc = mcfs_crc32c(0, data, l->size);
    free(data);
    ops->reader_close(r);
    return crc;
}

static bool add_listed(const struct mcfs_object *o, void *arg)
{
    struct listing *list = arg;
    list->v = realloc(list->v, (list->n + 1) * sizeof(*list->v));
    list->v[list->n++] =
        (struct listed){memcpy(malloc(o->tenant.len), o->tenant.data, o->tenant.len),
                        memcpy(malloc(o->key.len + 1), o->key.data, o->key.len),
                        o->tenant.len,
                        o->key.len,
                        o->version,
                        o->size,
                        0};
    return true;
}

/* Its files go when nothing is left in them; its objects are ours then, with the same bytes. */
Test(compact, a_bucket_that_mooncake_wrote)
{
    char command[256];
    snprintf(command, sizeof(command), "cp -r %s/bucket/. %s && chmod -R u+w %s", TEST_DATA_DIR,
             dir, dir);
    cr_assert_eq(system(command), 0);
    struct listing list = {.b = open_store()};
    cr_assert_eq(ops->scan(list.b, add_listed, &list, NULL), 0);
    cr_assert_gt(list.n, 8u);
    uint64_t before = stats(list.b).buckets;
    compact(list.b);
    cr_assert_eq(stats(list.b).buckets, before); /* untouched, it has no log of ours */
    for (size_t i = 0; i < list.n; i++) {
        struct listed *l = &list.v[i];
        struct mcfs_backend_name n = {
            mcfs_slice(l->tenant, l->tenant_len), mcfs_slice(l->key, l->key_len), l->version, {0}};
        l->crc = crc_of(list.b, l);
        if (i % 8)
            cr_assert_eq(ops->remove(list.b, &n, 1), 0);
    }
    compact(list.b);
    cr_assert_gt(stats(list.b).compactions, 0u);
    for (int again = 0; again < 2; again++) {
        cr_assert_eq(stats(list.b).objects, (list.n + 7) / 8);
        for (size_t i = 0; i < list.n; i += 8)
            cr_assert_eq(crc_of(list.b, &list.v[i]), list.v[i].crc);
        close_store(list.b);
        list.b = open_store();
    }
    close_store(list.b);
    for (size_t i = 0; i < list.n; i++) {
        free(list.v[i].tenant);
        free(list.v[i].key);
    }
    free(list.v);
}

/* ---- many at once ---- */

#define WORKERS 4
#define SLOTS 40

struct worker {
    struct mcfs_backend *b;
    int number;
    uint64_t version[SLOTS], seed[SLOTS]; /* 0: none */
    int64_t mtime[SLOTS];
    bool failed;
};

static uint64_t next_random(uint64_t *x)
{
    *x ^= *x << 13, *x ^= *x >> 7, *x ^= *x << 17;
    return *x >> 20;
}

static bool rename_slot(struct worker *w, int from, int to, uint64_t version)
{
    char a[24], c[24];
    int base = w->number * SLOTS;
    if (ops->rekey(w->b, TENANT, key_of(base + from, a), w->version[from], key_of(base + to, c),
                   version, NULL) ||
        look(w->b, base + from, w->version[from], w->seed[from]) != 0)
        return false;
    if (w->version[to] && !del(w->b, base + to, w->version[to]))
        return false;
    w->version[to] = version;
    w->seed[to] = w->seed[from];
    w->mtime[to] = w->mtime[from];
    w->version[from] = 0;
    return true;
}

static bool one_step(struct worker *w, uint64_t version, uint64_t *x)
{
    int slot = (int)(next_random(x) % SLOTS), to = (int)(next_random(x) % SLOTS);
    int k = w->number * SLOTS + slot;
    char key[24];
    uint64_t old = w->version[slot];
    switch (next_random(x) % 8) {
    case 0:
    case 1:
        w->version[slot] = w->seed[slot] = version;
        w->mtime[slot] = 3;
        return put(w->b, k, version) && (!old || del(w->b, k, old));
    case 2:
        w->version[slot] = 0;
        return !old || (del(w->b, k, old) && look(w->b, k, old, 0) == 0);
    case 3:
        return !old || slot == to || rename_slot(w, slot, to, version);
    case 4: {
        struct mcfs_attr attr = {0600, 1, 2, (int64_t)version};
        w->mtime[slot] = (int64_t)version;
        return !old || ops->set_attr(w->b, TENANT, key_of(k, key), old, &attr, NULL) == 0;
    }
    default:
        return look(w->b, k, old ? old : 1, w->seed[slot]) == (old != 0);
    }
}

static void *work(void *arg)
{
    struct worker *w = arg;
    uint64_t x = (uint64_t)w->number * 77777 + 12345;
    for (uint64_t i = 1; i <= 1500 && !w->failed; i++)
        w->failed |= !one_step(w, (uint64_t)(w->number + 1) * 1000000 + i, &x);
    return NULL;
}

static struct mcfs_backend *shared;
static atomic_bool stop;

static bool count(const struct mcfs_object *o, void *arg)
{
    (void)o;
    ++*(int *)arg;
    return true;
}

/* Of the objects that nobody changes. */
static bool count_fixed(const struct mcfs_object *o, void *arg)
{
    ((uint8_t *)arg)[o->version] += o->version < 200;
    return true;
}

#define OWN 20000 /* keys of the thread that evicts, whose versions are below the workers' */

/* Eight of its own objects are held back; half of them go. */
static bool evict_some(uint64_t *next)
{
    struct mcfs_backend_victim v[8];
    struct mcfs_backend_cursor at = {200, 0, 0}; /* behind the fixed ones */
    bool ok = true;
    for (int i = 0; i < 8; i++, ++*next)
        ok &= put(shared, OWN + (int)*next, *next);
    int64_t n = ops->evict_choose(shared, &at, UINT64_MAX, v, 8, NULL);
    ok &= n == 8 && ops->evict_hold(shared, v, 8) == 8;
    uint64_t version[8];
    for (int i = 0; i < n; i++) {
        version[i] = v[i].version;
        v[i].gone = i % 2;
        ok &= look(shared, OWN + (int)version[i], version[i], version[i]) == 0;
    }
    ok &= ops->evict_end(shared, v, (size_t)n) == 0;
    for (int i = 0; i < n; i++)
        ok &= look(shared, OWN + (int)version[i], version[i], version[i]) == (i % 2 == 0) &&
              (i % 2 || *next < 400 || del(shared, OWN + (int)version[i], version[i]));
    return ok;
}

static void *evict_and_scan(void *arg)
{
    bool *failed = arg;
    uint64_t next = 201;
    while (!atomic_load(&stop)) {
        *failed |= !evict_some(&next);
        uint8_t *seen = calloc(8000000, 1);
        ops->scan(shared, count_fixed, seen, NULL);
        for (int i = 1; i < 160; i += 8)
            *failed |= seen[i] != 1;
        free(seen);
        usleep(2000);
    }
    for (uint64_t v = 201; v < next; v++)
        *failed |= !del(shared, OWN + (int)v, v);
    return NULL;
}

static void *compact_often(void *arg)
{
    while (!atomic_load(&stop)) {
        store_compact((struct store *)shared, NULL);
        usleep(500);
    }
    return arg;
}

static void check_worker(struct mcfs_backend *b, const struct worker *w)
{
    for (int i = 0; i < SLOTS; i++)
        if (w->version[i])
            cr_assert_eq(look(b, w->number * SLOTS + i, w->version[i], w->seed[i]), 1);
}

Test(compact, threads_do_everything_while_buckets_are_compacted)
{
    shared = open_every(5, "fifo");
    /* Ten buckets of which two objects of each stay, under keys that no worker has. */
    for (int k = 0; k < 160; k++)
        cr_assert(put(shared, 10000 + k, (uint64_t)k + 1));
    for (int k = 0; k < 160; k++)
        if (k % 8)
            cr_assert(del(shared, 10000 + k, (uint64_t)k + 1));
    struct worker *w = calloc(WORKERS, sizeof(*w));
    pthread_t threads[WORKERS], others[2];
    bool failed = false;
    int n = 0, live = 20;
    atomic_store(&stop, false);
    pthread_create(&others[0], NULL, evict_and_scan, &failed);
    pthread_create(&others[1], NULL, compact_often, NULL);
    for (int i = 0; i < WORKERS; i++) {
        w[i].b = shared;
        w[i].number = i;
        pthread_create(&threads[i], NULL, work, &w[i]);
    }
    for (int i = 0; i < WORKERS; i++)
        pthread_join(threads[i], NULL);
    atomic_store(&stop, true);
    for (int i = 0; i < 2; i++)
        pthread_join(others[i], NULL);
    cr_assert_not(failed);
    cr_assert_gt(stats(shared).compactions, 0u);
    for (int again = 0; again < 2; again++) {
        for (int i = 0; i < WORKERS; i++) {
            cr_assert_not(w[i].failed);
            check_worker(shared, &w[i]);
        }
        close_store(shared);
        shared = open_store();
    }
    for (int i = 0; i < WORKERS; i++)
        for (int k = 0; k < SLOTS; k++)
            live += w[i].version[k] != 0;
    cr_assert_eq(ops->scan(shared, count, &n, NULL), 0);
    cr_assert_eq(n, live);
    close_store(shared);
    free(w);
}

/* ---- killed ---- */

/* Says what it has done, after it: a put, a removal, or a new name, each a line. */
static void child_main(int fd, int round)
{
    shared = open_every(1, NULL);
    pthread_t thread;
    pthread_create(&thread, NULL, compact_often, NULL);
    for (uint64_t v = 1;; v++) {
        char line[64], a[24], c[24];
        int k = (int)v + round * 1000000, n;
        if (!put(shared, k, v))
            _exit(1);
        n = snprintf(line, sizeof(line), "+%d %d\n", k, (int)v);
        if (write(fd, line, (size_t)n) != n)
            _exit(1);
        if (v > 40 && v % 8 == 3) { /* in buckets that are being emptied */
            int old = k - 40;
            n = snprintf(line, sizeof(line), "=%d %d\n", old, (int)v - 40);
            if (write(fd, line, (size_t)n) != n || /* begun */
                ops->rekey(shared, TENANT, key_of(old, a), v - 40, key_of(-old, c), v - 40, NULL))
                _exit(1);
            n = snprintf(line, sizeof(line), ">%d %d\n", old, (int)v - 40);
        } else if (v > 20 && (v - 20) % 8 != 3) {
            n = snprintf(line, sizeof(line), "?%d %d\n", k - 20, (int)v - 20);
            if (write(fd, line, (size_t)n) != n || !del(shared, k - 20, v - 20))
                _exit(1);
            n = snprintf(line, sizeof(line), "-%d %d\n", k - 20, (int)v - 20);
        } else {
            continue;
        }
        if (write(fd, line, (size_t)n) != n)
            _exit(1);
    }
}

/* What has been said last of each version counts. */
static void check_lines(struct mcfs_backend *b, FILE *f)
{
    char line[64], sign;
    int k, v, most = 0;
    static char said[1 << 20];
    static int key[1 << 20];
    memset(said, 0, sizeof(said));
    while (fgets(line, sizeof(line), f) && strchr(line, '\n')) {
        cr_assert_eq(sscanf(line, "%c%d %d", &sign, &k, &v), 3);
        said[v] = sign;
        key[v] = k;
        most = v > most ? v : most;
    }
    cr_assert_gt(most, 0);
    for (v = 1; v <= most; v++) {
        uint64_t x = (uint64_t)v;
        int old = look(b, key[v], x, x), new = look(b, -key[v], x, x);
        cr_assert(old >= 0 && new >= 0);
        if (said[v] == '=')
            cr_assert_eq(old + new, 1);
        else if (said[v] != '?')
            cr_assert(old == (said[v] == '+') && new == (said[v] == '>'), "%c%d", said[v], v);
    }
}

Test(compact, killed_at_any_moment)
{
    for (int round = 1; round <= 10; round++) {
        int fds[2];
        cr_assert_eq(pipe(fds), 0);
        cr_assert_gt(fcntl(fds[1], F_SETPIPE_SZ, 1 << 20), 0);
        fflush(NULL);
        pid_t pid = fork();
        if (pid == 0) {
            close(fds[0]);
            child_main(fds[1], round);
        }
        close(fds[1]);
        usleep(60000 + 23000 * (useconds_t)round);
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        struct mcfs_backend *b = open_store();
        FILE *f = fdopen(fds[0], "r");
        check_lines(b, f);
        fclose(f);
        close_store(b);
        teardown();
        setup();
    }
}
