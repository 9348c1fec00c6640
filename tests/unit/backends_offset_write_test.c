/* SPDX-License-Identifier: Apache-2.0 */
/* The offset store, written: against a model, through restarts and crashes in each mode, with
 * damaged files, and over directories that Mooncake wrote. */
#include "backends/backends.h"
#include "backends/check.h"
#include "backends/offset/offset.h"
#include "backends/offset/offset_image.h"
#include "backends/offset/offset_meta.h"
#include "backends/offset/offset_record.h"
#include "common/crc32c.h"
#include "common/file.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <jansson.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char dir[64], copy_dir[80];
static struct mcfs_backend_config config;
static struct mcfs_backend_recovery found;

static void shell(const char *fmt, ...)
{
    char command[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(command, sizeof(command), fmt, ap);
    va_end(ap);
    cr_assert_eq(system(command), 0, "%s", command);
}

static void setup(void)
{
    strcpy(dir, "/tmp/mcfs-offset-XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
    snprintf(copy_dir, sizeof(copy_dir), "%s/copy", dir);
    strcat(dir, "/store");
    config = (struct mcfs_backend_config){.dir = dir,
                                          .capacity_bytes = 8u << 20,
                                          .flush_interval_ms = 3600000,
                                          .offset_checkpoint_ms = 3600000};
}

static void teardown(void)
{
    *strrchr(dir, '/') = 0;
    shell("chmod -R u+w %s && rm -rf %s", dir, dir);
}

TestSuite(offset_write, .init = setup, .fini = teardown, .timeout = 300);

/* ---- helpers ---- */

static struct mcfs_slice slice(const char *s)
{
    return mcfs_slice_str(s);
}

static const struct mcfs_slice tenant = {"default", 7};

static struct mcfs_backend *try_open(struct mcfs_error *err)
{
    *err = (struct mcfs_error)MCFS_ERROR_INIT;
    return mcfs_backend_find("offset_allocator_storage_backend")->open(&config, &found, err);
}

static struct mcfs_backend *open_store(void)
{
    struct mcfs_error err;
    struct mcfs_backend *b = try_open(&err);
    cr_assert_not_null(b, "%s", err.msg);
    return b;
}

static void close_store(struct mcfs_backend *b)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    cr_assert_eq(b->ops->close(b, &err), 0, "%s", err.msg);
}

static int put_full(struct mcfs_backend *b, const char *key, uint64_t version, const void *data,
                    size_t size, struct mcfs_error *err)
{
    struct mcfs_backend_put item = {
        .object = {.tenant = tenant,
                   .key = slice(key),
                   .version = version,
                   .size = size,
                   .attr = {.mode = 0640, .uid = 7, .gid = 8, .mtime_ns = (int64_t)version}},
        .data = data};
    size_t failed = b->ops->put(b, &item, 1);
    cr_assert_eq(failed, item.err.code != 0);
    if (err)
        *err = item.err;
    return failed ? -1 : 0;
}

static void put(struct mcfs_backend *b, const char *key, uint64_t version, const void *data,
                size_t size)
{
    struct mcfs_error err;
    cr_assert_eq(put_full(b, key, version, data, size, &err), 0, "%s", err.msg);
}

static void put_text(struct mcfs_backend *b, const char *key, uint64_t version, const char *text)
{
    put(b, key, version, text, strlen(text));
}

static void del(struct mcfs_backend *b, const char *key, uint64_t version)
{
    struct mcfs_backend_name n = {.tenant = tenant, .key = slice(key), .version = version};
    cr_assert_eq(b->ops->remove(b, &n, 1), 0, "%s", n.err.msg);
}

static void rename_to(struct mcfs_backend *b, const char *from, uint64_t v, const char *to,
                      uint64_t w)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    cr_assert_eq(b->ops->rekey(b, tenant, slice(from), v, slice(to), w, &err), 0, "%s", err.msg);
}

static struct mcfs_backend_reader *reader(struct mcfs_backend *b, const char *key, uint64_t version)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct mcfs_backend_reader *r = b->ops->reader_open(b, tenant, slice(key), version, &err);
    cr_assert(r || err.code == MCFS_REPLICA_IS_GONE, "%s", err.msg);
    return r;
}

static void expect(struct mcfs_backend *b, const char *key, uint64_t version, const void *data,
                   size_t size)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct mcfs_backend_reader *r = reader(b, key, version);
    cr_assert_not_null(r, "%s of %llu is gone", key, (unsigned long long)version);
    char *got = malloc(size + 2);
    cr_assert_eq(r->ops->reader_read(r, got, size + 2, 0, &err), (int64_t)size, "%s: %s", key,
                 err.msg);
    cr_assert_eq(memcmp(got, data, size), 0, "%s: other bytes", key);
    cr_assert_eq(r->ops->reader_verify(r, &err), 0, "%s", err.msg);
    uint64_t at, len;
    int fd = r->ops->reader_fd(r, &at, &len);
    cr_assert(fd >= 0 && len == size && at % 512 == 0);
    cr_assert_eq(mcfs_pread_full(fd, got, size, at), (ssize_t)size);
    cr_assert_eq(memcmp(got, data, size), 0);
    r->ops->reader_close(r);
    free(got);
}

static void expect_text(struct mcfs_backend *b, const char *key, uint64_t version, const char *text)
{
    expect(b, key, version, text, strlen(text));
}

static void expect_gone(struct mcfs_backend *b, const char *key, uint64_t version)
{
    cr_assert_null(reader(b, key, version), "%s of %llu is there", key,
                   (unsigned long long)version);
}

static void on_finding(const struct finding *f, void *arg)
{
    if (!finding_is_damage(f->kind))
        return;
    ++*(int *)arg;
    fprintf(stderr, "%s at %llu: %s (%.*s)\n", f->file, (unsigned long long)f->offset, f->what,
            MCFS_SLICE_ARG(f->key));
}

/* Damage that fsck finds in a directory, every value read. */
static int damage_of(const char *where, uint64_t *objects)
{
    int damage = 0;
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct store_check c = {.layout = &mcfs_offset_ops,
                            .dir = where,
                            .sink = {.report = on_finding, .arg = &damage},
                            .read_all = true};
    cr_assert_eq(store_check(&c, &err), 0, "%s", err.msg);
    if (objects)
        *objects = c.objects;
    return damage;
}

/* What a process that dies now leaves behind. */
static void copy_store(void)
{
    shell("rm -rf %s && cp -r --sparse=always %s %s", copy_dir, dir, copy_dir);
}

static void use_copy(void)
{
    copy_store();
    config.dir = copy_dir;
}

/* ---- the basics ---- */

Test(offset_write, what_is_put_is_read_and_survives_a_clean_end)
{
    struct mcfs_backend *b = open_store();
    char big[100000];
    memset(big, 'b', sizeof(big));
    put_text(b, "a", 1, "alpha");
    put_text(b, "a", 2, "alpha, the second");
    put(b, "big", 3, big, sizeof(big));
    put(b, "empty", 4, "", 0);
    put_text(b, "a", 1, "not this one: the version is stored");
    for (int i = 0; i < 2; i++) {
        expect_text(b, "a", 1, "alpha");
        expect_text(b, "a", 2, "alpha, the second");
        expect(b, "big", 3, big, sizeof(big));
        expect(b, "empty", 4, "", 0);
        expect_gone(b, "a", 3);
        close_store(b);
        cr_assert_eq(damage_of(dir, NULL), 0);
        b = open_store();
        cr_assert_eq(found.objects, 4);
        cr_assert_eq(found.dropped_objects, 0);
    }
    close_store(b);
}

Test(offset_write, attributes_and_names_change_and_last)
{
    struct mcfs_backend *b = open_store();
    struct mcfs_attr attr = {.mode = 0600, .uid = 1, .gid = 2, .mtime_ns = 33};
    char longer[4200];
    memset(longer, 'l', sizeof(longer) - 1);
    longer[4080] = 0; /* does not fit into the same room as a short one */
    put_text(b, "x", 1, "one");
    put_text(b, "y", 2, "two");
    cr_assert_eq(b->ops->set_attr(b, tenant, slice("x"), 1, &attr, NULL), 0);
    rename_to(b, "x", 1, "x2", 5);
    rename_to(b, "y", 2, longer, 6);
    struct mcfs_error err = MCFS_ERROR_INIT;
    cr_assert_eq(b->ops->rekey(b, tenant, slice("x"), 1, slice("q"), 5, &err), -1);
    cr_assert_eq(err.code, MCFS_REPLICA_IS_GONE);
    cr_assert_eq(b->ops->rekey(b, tenant, slice("x2"), 5, slice(longer), 6, &err), -1);
    cr_assert_eq(err.code, MCFS_OBJECT_ALREADY_EXISTS);
    for (int i = 0; i < 3; i++) {
        expect_text(b, "x2", 5, "one");
        expect_text(b, longer, 6, "two");
        expect_gone(b, "x", 1);
        expect_gone(b, "y", 2);
        if (i == 0) { /* as after the death of the process */
            use_copy();
            cr_assert_eq(damage_of(copy_dir, NULL), 0);
            close_store(b);
        } else {
            close_store(b);
            cr_assert_eq(damage_of(config.dir, NULL), 0);
        }
        b = open_store();
        cr_assert_eq(found.objects, 2);
    }
    close_store(b);
}

/* The copy's place lies where no byte can be written. */
Test(offset_write, a_rename_whose_copy_cannot_be_written_changes_nothing)
{
    struct mcfs_backend *b = open_store();
    struct rlimit limit, lower;
    struct mcfs_error err = MCFS_ERROR_INIT;
    char longer[4081] = {0}, *pad = calloc(1, 1 << 20);
    memset(longer, 'l', sizeof(longer) - 1);
    put_text(b, "y", 1, "two");
    put(b, "pad", 2, pad, 1 << 20);
    signal(SIGXFSZ, SIG_IGN);
    cr_assert_eq(getrlimit(RLIMIT_FSIZE, &limit), 0);
    lower = (struct rlimit){1 << 20, limit.rlim_max};
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &lower), 0);
    int rc = b->ops->rekey(b, tenant, slice("y"), 1, slice(longer), 3, &err);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    cr_assert_eq(rc, -1);
    cr_assert_not_null(strstr(err.msg, "File too large"), "%s", err.msg);
    expect_gone(b, longer, 3);
    expect_text(b, "y", 1, "two");
    rename_to(b, "y", 1, longer, 3);
    expect_text(b, longer, 3, "two");
    close_store(b);
    free(pad);
}

struct attr_of {
    const char *key;
    struct mcfs_attr attr;
    uint64_t last_version, objects;
    bool in_order;
};

static bool take_attr_of(const struct mcfs_object *o, void *arg)
{
    struct attr_of *a = arg;
    a->objects++;
    a->in_order &= o->version > a->last_version;
    a->last_version = o->version;
    if (mcfs_slice_eq(o->key, slice(a->key)))
        a->attr = o->attr;
    return true;
}

Test(offset_write, a_scan_visits_all_in_the_order_of_their_puts)
{
    config.capacity_bytes = 32u << 20;
    struct mcfs_backend *b = open_store();
    char key[32];
    for (unsigned i = 1; i <= 1500; i++) {
        snprintf(key, sizeof(key), "k/%u", i * 7919 % 1501);
        put(b, key, i, key, strlen(key) % 3);
    }
    for (int i = 0; i < 3; i++) {
        struct attr_of a = {.key = "k/7", .in_order = true};
        cr_assert_eq(b->ops->scan(b, take_attr_of, &a, NULL), 0);
        cr_assert_eq(a.objects, 1500);
        cr_assert(a.in_order);
        cr_assert_eq(a.attr.mode, 0640);
        cr_assert_eq(a.attr.uid, 7);
        if (i == 0)
            use_copy();
        close_store(b);
        b = open_store();
    }
    close_store(b);
}

Test(offset_write, a_staging_file_is_copied_and_used_up)
{
    struct mcfs_backend *b = open_store();
    char path[128];
    static char data[1 << 20];
    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (char)(i * 31 >> 3);
    for (int with_crc = 0; with_crc < 2; with_crc++) {
        snprintf(path, sizeof(path), "%s/../staging", dir);
        cr_assert_eq(mcfs_write_file(path, data, sizeof(data), 0600, 0, NULL), 0);
        struct mcfs_backend_put item = {.object = {.tenant = tenant,
                                                   .key = slice("staged"),
                                                   .version = 1 + (uint64_t)with_crc,
                                                   .size = sizeof(data),
                                                   .has_crc = with_crc,
                                                   .crc32c = mcfs_crc32c(0, data, sizeof(data))},
                                        .staging_path = path};
        item.object.size++;
        cr_assert_eq(b->ops->put(b, &item, 1), 1);
        item.object.size--;
        cr_assert_eq(b->ops->put(b, &item, 1), 0, "%s", item.err.msg);
        cr_assert_neq(access(path, F_OK), 0);
    }
    expect(b, "staged", 1, data, sizeof(data));
    close_store(b);
    cr_assert_eq(damage_of(dir, NULL), 0);
    b = open_store();
    expect(b, "staged", 2, data, sizeof(data));
    close_store(b);
}

Test(offset_write, a_directory_has_one_owner)
{
    struct mcfs_backend *b = open_store();
    struct mcfs_error err;
    char pid[16];
    pid_t child = fork();
    if (child == 0)
        _exit(try_open(&err) || err.code != MCFS_FILE_LOCK_FAIL ||
              !strstr(err.msg, (snprintf(pid, sizeof(pid), "%d", (int)getppid()), pid)));
    int status;
    waitpid(child, &status, 0);
    cr_assert_eq(status, 0);
    close_store(b);
    close_store(open_store());
}

Test(offset_write, another_layouts_files_are_left_alone)
{
    struct mcfs_error err;
    shell("mkdir %s && touch %s/123.bucket", dir, dir);
    cr_assert_null(try_open(&err));
    cr_assert_eq(err.code, MCFS_INVALID_PARAMS);
    cr_assert_not_null(strstr(err.msg, "bucket_storage_backend"));
    shell("rm %s/123.bucket && echo hm > %s/strange && touch %s/kv_cache.meta.tmp.7.1", dir, dir,
          dir);
    close_store(open_store());
    cr_assert_eq(found.set_aside_files, 1);
    shell("test -e %s/lost+found/strange -a ! -e %s/kv_cache.meta.tmp.7.1", dir, dir);
}

/* ---- room ---- */

Test(offset_write, a_full_store_says_so_and_keeps_what_it_has)
{
    static char data[900000];
    struct mcfs_backend *b = open_store();
    struct mcfs_error err;
    char key[16];
    unsigned n = 0;
    memset(data, 'f', sizeof(data));
    for (;; n++) {
        snprintf(key, sizeof(key), "f%u", n);
        if (put_full(b, key, n + 1, data, sizeof(data), &err))
            break;
    }
    cr_assert_eq(err.code, MCFS_NO_AVAILABLE_HANDLE);
    cr_assert_eq(err.errnum, ENOSPC);
    cr_assert(n >= 8 && n <= 9);
    for (unsigned i = 0; i < n; i++) {
        snprintf(key, sizeof(key), "f%u", i);
        expect(b, key, i + 1, data, sizeof(data));
    }
    /* What is removed makes room at once, unless somebody reads it. */
    struct mcfs_backend_reader *r = reader(b, "f0", 1);
    del(b, "f0", 1);
    cr_assert_eq(put_full(b, "new", 100, data, sizeof(data), &err), -1);
    cr_assert_eq(err.code, MCFS_NO_AVAILABLE_HANDLE);
    char head[8];
    cr_assert_eq(r->ops->reader_read(r, head, 8, 0, NULL), 8);
    cr_assert_eq(memcmp(head, "ffffffff", 8), 0);
    cr_assert_eq(r->ops->reader_verify(r, NULL), 0);
    r->ops->reader_close(r);
    put(b, "new", 100, data, sizeof(data));
    close_store(b);
    b = open_store();
    expect(b, "new", 100, data, sizeof(data));
    expect_gone(b, "f0", 1);
    close_store(b);
    cr_assert_eq(damage_of(dir, NULL), 0);
}

Test(offset_write, a_range_is_not_used_again_before_its_removal_is_durable)
{
    struct mcfs_backend *b = open_store();
    struct mcfs_backend_place old, now;
    put_text(b, "a", 1, "first");
    cr_assert_eq(b->ops->sync(b, NULL), 0);
    cr_assert_eq(b->ops->locate(b, tenant, slice("a"), 1, &old, NULL), 0);
    del(b, "a", 1);
    put_text(b, "b", 2, "other");
    cr_assert_eq(b->ops->locate(b, tenant, slice("b"), 2, &now, NULL), 0);
    cr_assert_neq(now.offset, old.offset);
    cr_assert_eq(b->ops->sync(b, NULL), 0);
    put_text(b, "c", 3, "third");
    cr_assert_eq(b->ops->locate(b, tenant, slice("c"), 3, &now, NULL), 0);
    cr_assert_eq(now.offset, old.offset);
    close_store(b);
}

/* ---- against a model ---- */

#define KEYS 40
#define VERSIONS 8

struct model {
    struct {
        bool there;
        uint64_t version;
        uint32_t seed, size;
    } v[KEYS][VERSIONS];
    uint64_t next_version;
};

static unsigned rng;

static unsigned next(unsigned n)
{
    rng = rng * 1103515245u + 12345u;
    return (rng >> 8) % n;
}

static char *value_of(uint32_t seed, uint32_t size)
{
    char *v = malloc(size + 1);
    for (uint32_t i = 0; i < size; i++)
        v[i] = (char)((seed * 2654435761u + i * 40503u) >> 7);
    return v;
}

static const char *key_of(unsigned k)
{
    static char key[4300];
    int n = snprintf(key, sizeof(key), "dir%u/key%u", k % 3, k);
    if (k % 5 == 4) { /* one whose head needs two blocks */
        memset(key + n, 'x', 4090 - (size_t)n);
        key[4090] = 0;
    }
    return key;
}

static void check_model(struct mcfs_backend *b, const struct model *m)
{
    uint64_t objects = 0;
    for (unsigned k = 0; k < KEYS; k++) {
        for (unsigned i = 0; i < VERSIONS; i++) {
            if (!m->v[k][i].version)
                continue;
            if (!m->v[k][i].there) {
                expect_gone(b, key_of(k), m->v[k][i].version);
                continue;
            }
            char *data = value_of(m->v[k][i].seed, m->v[k][i].size);
            expect(b, key_of(k), m->v[k][i].version, data, m->v[k][i].size);
            free(data);
            objects++;
        }
    }
    struct mcfs_backend_stats stats;
    b->ops->stats(b, &stats);
    cr_assert_eq(stats.objects, objects);
    struct attr_of a = {.key = ""};
    cr_assert_eq(b->ops->scan(b, take_attr_of, &a, NULL), 0);
    cr_assert_eq(a.objects, objects);
}

static void model_put(struct mcfs_backend *b, struct model *m, unsigned k, unsigned i)
{
    struct mcfs_error err;
    uint32_t seed = rng, size = next(4) ? next(9000) : next(200000);
    char *data = value_of(seed, size);
    uint64_t version = m->next_version++;
    if (put_full(b, key_of(k), version, data, size, &err) == 0) {
        m->v[k][i].there = true;
        m->v[k][i].version = version;
        m->v[k][i].seed = seed;
        m->v[k][i].size = size;
    } else {
        cr_assert_eq(err.code, MCFS_NO_AVAILABLE_HANDLE, "%s", err.msg);
    }
    free(data);
}

static void model_step(struct mcfs_backend *b, struct model *m)
{
    unsigned k = next(KEYS), i = next(VERSIONS), to = next(KEYS), j = next(VERSIONS);
    struct mcfs_attr attr = {.mode = 0644};
    if (!m->v[k][i].there) {
        model_put(b, m, k, i);
        return;
    }
    switch (next(6)) {
    case 0:
        cr_assert_eq(b->ops->sync(b, NULL), 0);
        return;
    case 1:
        cr_assert_eq(b->ops->set_attr(b, tenant, slice(key_of(k)), m->v[k][i].version, &attr, NULL),
                     0);
        return;
    case 2:
        if (!m->v[to][j].there) {
            struct mcfs_error err = MCFS_ERROR_INIT;
            char from[4300];
            strcpy(from, key_of(k));
            uint64_t version = m->next_version++;
            if (b->ops->rekey(b, tenant, slice(from), m->v[k][i].version, slice(key_of(to)),
                              version, &err)) {
                cr_assert_eq(err.code, MCFS_NO_AVAILABLE_HANDLE, "%s", err.msg);
                return;
            }
            m->v[to][j] = m->v[k][i];
            m->v[to][j].version = version;
            m->v[k][i].there = false;
            return;
        }
        /* fall through */
    default:
        del(b, key_of(k), m->v[k][i].version);
        m->v[k][i].there = false;
    }
}

static void run_model(unsigned seed, const char *mode, bool no_crc)
{
    struct model m = {.next_version = 1};
    config.offset_persist = mode;
    config.offset_without_record_crc = no_crc;
    config.capacity_bytes = 6u << 20;
    rng = seed;
    struct mcfs_backend *b = open_store();
    for (unsigned round = 0; round < 12; round++) {
        for (unsigned step = 0; step < 250; step++)
            model_step(b, &m);
        check_model(b, &m);
        if (round % 3 == 0) { /* the process dies: what it leaves is used from now on */
            char other[200];
            copy_store();
            uint64_t objects;
            cr_assert_eq(damage_of(copy_dir, &objects), 0);
            close_store(b);
            snprintf(other, sizeof(other), "%s.old", dir);
            shell("rm -rf %s && mv %s %s && mv %s %s", other, dir, other, copy_dir, dir);
        } else {
            close_store(b);
            cr_assert_eq(damage_of(dir, NULL), 0);
        }
        b = open_store();
        cr_assert_eq(found.dropped_objects, 0);
        cr_assert_eq(found.set_aside_files, 0);
        check_model(b, &m);
    }
    close_store(b);
}

Test(offset_write, random_operations_relaxed)
{
    run_model(1, "relaxed", false);
    shell("rm -rf %s", dir);
    run_model(2, "relaxed", true);
}

Test(offset_write, random_operations_strict)
{
    run_model(3, "strict", false);
}

/* ---- several at once ---- */

#define WORKERS 4

struct worker {
    struct mcfs_backend *b;
    unsigned id, rng;
    uint64_t last; /* version of its key that is there at the end; 0: none */
    uint32_t seed;
};

static unsigned draw(struct worker *w, unsigned n)
{
    w->rng = w->rng * 1103515245u + 12345u;
    return (w->rng >> 8) % n;
}

/* Puts, reads, renames and removes one key over and over; the other workers take the room that it
 * gives back. */
static void *work(void *arg)
{
    struct worker *w = arg;
    char key[32], other[32];
    snprintf(key, sizeof(key), "w%u", w->id);
    snprintf(other, sizeof(other), "other%u", w->id);
    for (uint64_t version = 1; version < 400; version += 2) {
        uint32_t size = draw(w, 3) ? draw(w, 5000) : draw(w, 60000);
        w->seed = (uint32_t)version * 31 + w->id;
        char *data = value_of(w->seed, size);
        put(w->b, key, version, data, size);
        struct mcfs_backend_reader *r = reader(w->b, key, version);
        cr_assert_not_null(r);
        if (draw(w, 2)) {
            rename_to(w->b, key, version, other, version + 1);
            rename_to(w->b, other, version + 1, key, version + 1);
            w->last = version + 1;
        } else {
            w->last = version;
        }
        if (version < 397)
            del(w->b, key, w->last);
        char *got = malloc(size + 1);
        cr_assert_eq(r->ops->reader_read(r, got, size + 1, 0, NULL), (int64_t)size);
        cr_assert_eq(memcmp(got, data, size), 0);
        r->ops->reader_close(r);
        if (draw(w, 8) == 0)
            cr_assert_eq(w->b->ops->sync(w->b, NULL), 0);
        if (version >= 397)
            expect(w->b, key, w->last, data, size);
        free(got);
        free(data);
    }
    return NULL;
}

static bool count_one(const struct mcfs_object *o, void *arg)
{
    (void)o;
    ++*(uint64_t *)arg;
    return true;
}

Test(offset_write, several_at_once_with_checkpoints_all_the_time)
{
    struct worker w[WORKERS];
    pthread_t threads[WORKERS];
    config.capacity_bytes = 4u << 20;
    config.flush_interval_ms = 1;
    config.offset_checkpoint_ms = 1;
    struct mcfs_backend *b = open_store();
    for (unsigned i = 0; i < WORKERS; i++) {
        w[i] = (struct worker){.b = b, .id = i, .rng = i + 1};
        cr_assert_eq(pthread_create(&threads[i], NULL, work, &w[i]), 0);
    }
    for (int i = 0; i < 50; i++) {
        uint64_t n = 0;
        struct mcfs_backend_stats stats;
        cr_assert_eq(b->ops->scan(b, count_one, &n, NULL), 0);
        cr_assert(n <= 2 * WORKERS);
        b->ops->stats(b, &stats);
    }
    for (unsigned i = 0; i < WORKERS; i++)
        pthread_join(threads[i], NULL);
    close_store(b);
    cr_assert_eq(damage_of(dir, NULL), 0);
    b = open_store();
    cr_assert_eq(found.dropped_objects, 0);
    for (unsigned i = 0; i < WORKERS; i++) {
        char key[32];
        snprintf(key, sizeof(key), "w%u", i);
        struct mcfs_backend_reader *r = reader(b, key, w[i].last);
        cr_assert_not_null(r);
        cr_assert_eq(r->ops->reader_verify(r, NULL), 0);
        r->ops->reader_close(r);
    }
    close_store(b);
}

static void *put_until_killed(void *arg)
{
    struct mcfs_backend *b = arg;
    char key[32];
    for (uint64_t v = 1;; v++) {
        snprintf(key, sizeof(key), "k%u", (unsigned)(v % 16));
        put(b, key, v, key, strlen(key));
        if (v > 16) {
            snprintf(key, sizeof(key), "k%u", (unsigned)((v - 16) % 16));
            del(b, key, v - 16);
        }
    }
    return NULL;
}

/* Killed amid puts, syncs and checkpoints: what was put last is there, and nothing is damaged. */
Test(offset_write, killed_at_any_moment)
{
    config.capacity_bytes = 1u << 20;
    config.flush_interval_ms = 1;
    config.offset_checkpoint_ms = 2;
    for (unsigned i = 0; i < 25; i++) {
        uint64_t objects;
        shell("rm -rf %s", dir);
        pid_t child = fork();
        if (child == 0) {
            put_until_killed(open_store());
            _exit(1);
        }
        usleep(5000 + i * 3000);
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        if (access(dir, F_OK))
            continue;
        cr_assert_eq(damage_of(dir, NULL), 0);
        struct mcfs_backend *b = open_store();
        cr_assert_eq(found.dropped_objects, 0);
        cr_assert_eq(found.set_aside_files, 0);
        objects = found.objects;
        cr_assert(objects <= 17);
        close_store(b);
        cr_assert_eq(damage_of(dir, NULL), 0);
    }
}

/* ---- modes ---- */

Test(offset_write, a_disabled_store_forgets_and_leaves_no_checkpoint_over_other_bytes)
{
    struct mcfs_backend *b = open_store();
    put_text(b, "old", 1, "kept so far");
    close_store(b);
    config.offset_persist = "disabled";
    b = open_store();
    cr_assert_eq(found.objects, 0);
    shell("test ! -e %s/kv_cache.meta -a ! -e %s/kv_cache.journal", dir, dir);
    put_text(b, "new", 2, "for now");
    expect_text(b, "new", 2, "for now");
    del(b, "new", 2);
    put_text(b, "newer", 3, "for now, too");
    cr_assert_eq(b->ops->sync(b, NULL), 0);
    use_copy(); /* it dies */
    close_store(b);
    for (int i = 0; i < 2; i++) {
        config.offset_persist = i ? "strict" : "relaxed";
        cr_assert_eq(damage_of(config.dir, NULL), 0);
        b = open_store();
        cr_assert_eq(found.objects, 0);
        cr_assert_eq(found.set_aside_files, 0);
        put_text(b, "again", 4, "stays");
        close_store(b);
        b = open_store();
        expect_text(b, "again", 4, "stays");
        close_store(b);
        config.dir = dir;
    }
    config.offset_persist = "sometimes";
    struct mcfs_error err;
    cr_assert_null(try_open(&err));
    cr_assert_eq(err.code, MCFS_INVALID_PARAMS);
}

Test(offset_write, a_strict_put_costs_no_checkpoint)
{
    config.offset_persist = "strict";
    struct mcfs_backend *b = open_store();
    struct mcfs_backend_stats before, after;
    struct stat was, is;
    char path[128];
    snprintf(path, sizeof(path), "%s/kv_cache.meta", dir);
    cr_assert_eq(stat(path, &was), 0);
    b->ops->stats(b, &before);
    put_text(b, "s", 1, "durable");
    b->ops->stats(b, &after);
    cr_assert_eq(after.syncs, before.syncs + 1);
    cr_assert_eq(stat(path, &is), 0);
    cr_assert_eq(was.st_ino, is.st_ino);
    close_store(b);
}

/* ---- damage ---- */

static void truncate_file(const char *name, off_t size)
{
    char path[160];
    snprintf(path, sizeof(path), "%s/%s", config.dir, name);
    cr_assert_eq(truncate(path, size), 0);
}

static off_t size_of(const char *name)
{
    char path[160];
    struct stat st;
    snprintf(path, sizeof(path), "%s/%s", config.dir, name);
    cr_assert_eq(stat(path, &st), 0);
    return st.st_size;
}

Test(offset_write, a_journal_that_is_torn_at_any_byte_loses_only_what_was_not_finished)
{
    config.capacity_bytes = 1u << 20;
    struct mcfs_backend *b = open_store();
    off_t ends[4];
    put_text(b, "a", 1, "first");
    ends[0] = size_of("kv_cache.journal");
    put_text(b, "b", 2, "second");
    ends[1] = size_of("kv_cache.journal");
    del(b, "a", 1);
    ends[2] = size_of("kv_cache.journal");
    rename_to(b, "b", 2, "c", 3);
    ends[3] = size_of("kv_cache.journal");
    for (off_t at = OFFSET_LOG_HEAD; at <= ends[3]; at++) {
        config.dir = dir;
        use_copy();
        truncate_file("kv_cache.journal", at);
        cr_assert_eq(damage_of(copy_dir, NULL), 0);
        struct mcfs_backend *c = open_store();
        cr_assert_eq((int)found.objects, (at >= ends[0]) + (at >= ends[1]) - (at >= ends[2]));
        if (at >= ends[0] && at < ends[2])
            expect_text(c, "a", 1, "first");
        if (at >= ends[1])
            expect_text(c, at < ends[3] ? "b" : "c", at < ends[3] ? 2 : 3, "second");
        put_text(c, "d", 4, "after");
        close_store(c);
        c = open_store();
        expect_text(c, "d", 4, "after");
        close_store(c);
    }
    close_store(b);
}

Test(offset_write, a_damaged_journal_record_costs_no_other_object)
{
    struct mcfs_backend *b = open_store();
    off_t begin = size_of("kv_cache.journal");
    put_text(b, "a", 1, "first");
    put_text(b, "b", 2, "second");
    put_text(b, "c", 3, "third");
    use_copy();
    close_store(b);
    char path[160];
    snprintf(path, sizeof(path), "%s/kv_cache.journal", copy_dir);
    int fd = open(path, O_RDWR);
    cr_assert_eq(pwrite(fd, "XXXX", 4, begin + 30), 4);
    close(fd);
    cr_assert(damage_of(copy_dir, NULL) > 0);
    b = open_store();
    expect_gone(b, "a", 1);
    expect_text(b, "b", 2, "second");
    expect_text(b, "c", 3, "third");
    close_store(b);
    shell("test -e %s/lost+found/kv_cache.journal", copy_dir);
    cr_assert_eq(damage_of(copy_dir, NULL), 0);
}

Test(offset_write, without_a_usable_checkpoint_the_index_goes_on)
{
    for (int i = 0; i < 3; i++) {
        config.dir = dir;
        struct mcfs_backend *b = open_store();
        put_text(b, "kept", 1, "bytes");
        close_store(b);
        use_copy();
        if (i == 0)
            shell("rm %s/kv_cache.meta", copy_dir);
        else
            truncate_file("kv_cache.meta", i == 1 ? 0 : size_of("kv_cache.meta") / 2);
        b = open_store();
        expect_text(b, "kept", 1, "bytes");
        close_store(b);
        cr_assert_eq(damage_of(copy_dir, NULL), 0);
    }
}

Test(offset_write, without_a_usable_index_the_checkpoint_goes_on)
{
    struct mcfs_backend *b = open_store();
    put_text(b, "kept", 9, "bytes");
    close_store(b);
    use_copy();
    truncate_file("kv_cache.index", 50);
    b = open_store();
    cr_assert_eq(found.objects, 1);
    expect_text(b, "kept", 1, "bytes"); /* Mooncake's number of it is 0 */
    close_store(b);
    cr_assert_eq(damage_of(copy_dir, NULL), 0);
}

Test(offset_write, bytes_that_rot_are_found_and_dropped)
{
    struct mcfs_backend *b = open_store();
    struct mcfs_backend_place place;
    struct mcfs_error err = MCFS_ERROR_INIT;
    put_text(b, "good", 1, "these stay");
    put_text(b, "bad", 2, "these rot");
    cr_assert_eq(b->ops->locate(b, tenant, slice("bad"), 2, &place, NULL), 0);
    close_store(b);
    char path[128];
    snprintf(path, sizeof(path), "%s/kv_cache.data", dir);
    int fd = open(path, O_RDWR);
    cr_assert_eq(pwrite(fd, "T", 1, (off_t)place.offset), 1);
    close(fd);
    cr_assert_eq(damage_of(dir, NULL), 1);
    b = open_store();
    struct mcfs_backend_reader *r = reader(b, "bad", 2);
    cr_assert_eq(r->ops->reader_verify(r, &err), -1);
    cr_assert_eq(err.code, MCFS_CHECKSUM_MISMATCH);
    r->ops->reader_close(r);
    cr_assert_null(b->ops->reader_open(b, tenant, slice("bad"), 2, &err));
    expect_text(b, "good", 1, "these stay");
    close_store(b);
}

/* ---- what Mooncake wrote, and would read ---- */

struct search {
    struct mcfs_slice tenant, key;
    uint64_t version;
};

static bool match(const struct mcfs_object *o, void *arg)
{
    struct search *s = arg;
    if (mcfs_slice_eq(o->tenant, s->tenant) && mcfs_slice_eq(o->key, s->key))
        s->version = o->version;
    return true;
}

/* Whether an object of a listing is there, with its bytes; it must be when the listing says so. */
static size_t check_listed(struct mcfs_backend *b, const json_t *o)
{
    json_t *k = json_object_get(o, "key");
    size_t size = (size_t)json_integer_value(json_object_get(o, "size"));
    struct search s = {slice(json_string_value(json_object_get(o, "tenant"))),
                       mcfs_slice(json_string_value(k), json_string_length(k)), 0};
    unsigned char digest[32];
    char hex[65];
    cr_assert_eq(b->ops->scan(b, match, &s, NULL), 0);
    cr_assert_eq(s.version != 0, json_is_true(json_object_get(o, "present")), "%.*s",
                 MCFS_SLICE_ARG(s.key));
    if (!s.version)
        return 0;
    struct mcfs_backend_reader *r = b->ops->reader_open(b, s.tenant, s.key, s.version, NULL);
    cr_assert_not_null(r);
    char *data = malloc(size + 1);
    cr_assert_eq(r->ops->reader_read(r, data, size + 1, 0, NULL), (int64_t)size);
    EVP_Digest(data, size, digest, NULL, EVP_sha256(), NULL);
    for (int i = 0; i < 32; i++)
        sprintf(hex + 2 * i, "%02x", digest[i]);
    cr_assert_str_eq(hex, json_string_value(json_object_get(o, "sha256")));
    r->ops->reader_close(r);
    free(data);
    return 1;
}

static void open_golden(const char *name)
{
    char path[256];
    snprintf(path, sizeof(path), "%s/%s.json", TEST_DATA_DIR, name);
    shell("rm -rf %s && cp -r %s/%s %s && chmod -R u+w %s", dir, TEST_DATA_DIR, name, dir, dir);
    json_t *listing = json_load_file(path, JSON_ALLOW_NUL, NULL), *o;
    size_t i;
    cr_assert_not_null(listing);
    for (int round = 0; round < 3; round++) {
        struct mcfs_backend *b = open_store();
        size_t present = 0;
        json_array_foreach(json_object_get(listing, "objects"), i, o)
        {
            present += check_listed(b, o);
        }
        cr_assert_gt(present, 0);
        cr_assert_eq(found.objects, present + (round > 0), "%s", name);
        if (round > 0)
            cr_assert_eq(found.dropped_objects, 0);
        if (round == 0)
            put_text(b, "ours", 1000, "beside theirs");
        expect_text(b, "ours", 1000, "beside theirs");
        if (round == 1)
            use_copy();
        close_store(b);
        cr_assert_eq(damage_of(config.dir, NULL), 0);
    }
    config.dir = dir;
    json_decref(listing);
}

Test(offset_write, directories_of_mooncakes_are_taken_over)
{
    config.capacity_bytes = 16u << 20;
    open_golden("offset_strict");
    open_golden("offset_relaxed");
    open_golden("offset_crash");
}

/* By kv_cache.meta alone, as Mooncake does. */
Test(offset_write, mooncakes_rules_find_exactly_what_a_checkpoint_has)
{
    struct mcfs_backend *b = open_store();
    struct offset_checkpoint_found what;
    put_text(b, "stays", 1, "one");
    put_text(b, "goes", 2, "two");
    put_text(b, "old name", 3, "three");
    put_text(b, "new name", 2, "what was there");
    rename_to(b, "old name", 3, "new name", 4);
    del(b, "goes", 2);
    close_store(b);
    struct catalog *c = offset_read_checkpoint(dir, false, NULL, NULL, &what, NULL);
    cr_assert_not_null(c);
    cr_assert_eq(c->count, 2);
    cr_assert_eq(what.dropped, 0);
    const struct catalog_entry *e = catalog_find(c, mcfs_slice("default\0new name", 16));
    cr_assert_not_null(e);
    cr_assert_eq(e->size, 5);
    catalog_free(c);
    /* Its checkpoint since then is believed, not our index; what is left keeps its version. */
    shell("cp -r %s %s && printf '\\052\\015default\\000stays' >> %s/kv_cache.meta", dir, copy_dir,
          copy_dir);
    config.dir = copy_dir;
    b = open_store();
    cr_assert_eq(found.objects, 1);
    expect_gone(b, "stays", 1);
    expect_text(b, "new name", 4, "three");
    close_store(b);
    cr_assert_eq(damage_of(copy_dir, NULL), 0);
}
