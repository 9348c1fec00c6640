/* SPDX-License-Identifier: Apache-2.0 */
/* What backend.h says of every backend, held against each that can be written. */
#include "backends/backends.h"
#include "common/file.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *const writable[] = {"bucket_storage_backend", "file_per_key_storage_backend",
                                       "offset_allocator_storage_backend"};

#define TENANT MCFS_SLICE_LITERAL("default")
#define SLICE(text) mcfs_slice_str(text)

static const struct mcfs_backend_ops *ops;
static char dir[64];
static const char *engine;
static uint64_t capacity;

/* ---- helpers ---- */

static struct mcfs_backend_config config_of(void)
{
    return (struct mcfs_backend_config){.dir = dir,
                                        .bucket_keys_limit = 20,
                                        .single_object_min_bytes = 100000,
                                        .io_engine = engine,
                                        .capacity_bytes = capacity};
}

static struct mcfs_backend *try_open(bool read_only, struct mcfs_error *err)
{
    struct mcfs_backend_config config = config_of();
    struct mcfs_backend_recovery found;
    config.read_only = read_only;
    return ops->open(&config, &found, err);
}

static struct mcfs_backend *open_store(void)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct mcfs_backend *b = try_open(false, &err);
    cr_assert_not_null(b, "%s: %s", ops->name, err.msg);
    return b;
}

static void close_store(struct mcfs_backend *b)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    cr_assert_eq(b->ops->close(b, &err), 0, "%s: %s", ops->name, err.msg);
}

static struct mcfs_backend *reopen(struct mcfs_backend *b)
{
    close_store(b);
    return open_store();
}

/* The bytes of a version, so that any can be checked without having been remembered. */
static void content(uint64_t seed, size_t size, unsigned char *out)
{
    uint64_t x = seed * 0x9e3779b97f4a7c15ULL + 1;
    for (size_t i = 0; i < size; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        out[i] = (unsigned char)x;
    }
}

static size_t size_of(uint64_t seed)
{
    static const size_t sizes[] = {0, 1, 100, 5000, 40000, 150000};
    return sizes[seed % 6];
}

static struct mcfs_attr attr_of(uint64_t seed)
{
    return (struct mcfs_attr){0600 + (uint32_t)(seed % 64), 1000, 2000, (int64_t)seed * 1000003};
}

static bool same_attr(struct mcfs_attr a, struct mcfs_attr b)
{
    return a.mode == b.mode && a.uid == b.uid && a.gid == b.gid && a.mtime_ns == b.mtime_ns;
}

/* Puts the bytes of `seed` under (key, version); the code of what went wrong. */
static int put_as(struct mcfs_backend *b, struct mcfs_slice key, uint64_t version, uint64_t seed)
{
    size_t size = size_of(seed);
    unsigned char *data = malloc(size + 1);
    content(seed, size, data);
    struct mcfs_backend_put item = {.object = {.tenant = TENANT,
                                               .key = key,
                                               .version = version,
                                               .size = size,
                                               .attr = attr_of(seed),
                                               .data_type = 9},
                                    .data = data};
    size_t failed = b->ops->put(b, &item, 1);
    cr_assert_eq(failed != 0, item.err.code != 0);
    free(data);
    return item.err.code;
}

static int put(struct mcfs_backend *b, const char *key, uint64_t version)
{
    return put_as(b, SLICE(key), version, version);
}

/* 0 when the bytes of `seed` are there, else the code of what went wrong. */
static int read_as(struct mcfs_backend *b, struct mcfs_slice key, uint64_t version, uint64_t seed)
{
    size_t size = size_of(seed);
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct mcfs_backend_reader *r = b->ops->reader_open(b, TENANT, key, version, &err);
    if (!r)
        return err.code;
    unsigned char *want = malloc(size + 1), *got = malloc(size + 1);
    content(seed, size, want);
    int64_t n = r->ops->reader_read(r, got, size + 1, 0, &err);
    int code = n < 0 ? err.code : 0;
    if (n >= 0)
        cr_assert(n == (int64_t)size && memcmp(want, got, size) == 0,
                  "%s: version %d has other bytes", ops->name, (int)version);
    if (code == 0 && r->ops->reader_verify(r, &err))
        code = err.code;
    free(want);
    free(got);
    r->ops->reader_close(r);
    return code;
}

static int read_key(struct mcfs_backend *b, const char *key, uint64_t version)
{
    return read_as(b, SLICE(key), version, version);
}

static int remove_key(struct mcfs_backend *b, const char *key, uint64_t version)
{
    struct mcfs_backend_name n = {.tenant = TENANT, .key = SLICE(key), .version = version};
    b->ops->remove(b, &n, 1);
    return n.err.code;
}

static int rename_key(struct mcfs_backend *b, const char *from, uint64_t v, const char *to,
                      uint64_t w)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    int rc = b->ops->rekey(b, TENANT, SLICE(from), v, SLICE(to), w, &err);
    return rc ? err.code : 0;
}

struct seen {
    struct mcfs_slice key;
    uint64_t version;
    int count, all;
    struct mcfs_object object;
};

static bool see(const struct mcfs_object *o, void *arg)
{
    struct seen *s = arg;
    s->all++;
    if (mcfs_slice_eq(o->key, s->key) && o->version == s->version) {
        s->object = *o;
        s->count++;
    }
    return true;
}

static struct seen scan_for(struct mcfs_backend *b, struct mcfs_slice key, uint64_t version)
{
    struct seen s = {.key = key, .version = version};
    cr_assert_eq(b->ops->scan(b, see, &s, NULL), 0);
    return s;
}

static int objects(struct mcfs_backend *b)
{
    struct mcfs_backend_stats stats;
    int n = scan_for(b, SLICE(""), 0).all;
    b->ops->stats(b, &stats);
    cr_assert_eq(stats.objects, (uint64_t)n, "%s", ops->name);
    return n;
}

/* Runs a test over each backend with each engine, in a directory of its own. */
static void with_each(void (*test)(void))
{
    for (size_t i = 0; i < 2 * (sizeof(writable) / sizeof(writable[0])); i++) {
        char command[128];
        ops = mcfs_backend_find(writable[i / 2]);
        engine = i % 2 ? "uring" : "plain";
        capacity = 0;
        strcpy(dir, "/tmp/mcfs-conform-XXXXXX");
        cr_assert_not_null(mkdtemp(dir));
        test();
        snprintf(command, sizeof(command), "rm -rf %s", dir);
        cr_assert_eq(system(command), 0);
    }
}

#define CONFORMANCE(name)                                                                          \
    static void name(void);                                                                        \
    Test(conformance, name)                                                                        \
    {                                                                                              \
        with_each(name);                                                                           \
    }                                                                                              \
    static void name(void)

TestSuite(conformance, .timeout = 300);

/* ---- names, bytes, attributes ---- */

CONFORMANCE(what_was_put_is_found_again)
{
    struct mcfs_backend *b = open_store();
    char key[32];
    for (int round = 0; round < 2; round++) {
        for (uint64_t v = 1; v <= 100; v++) {
            sprintf(key, "k%d", (int)v);
            if (round == 0)
                cr_assert_eq(put(b, key, v), 0);
            cr_assert_eq(read_key(b, key, v), 0);
            struct seen s = scan_for(b, SLICE(key), v);
            cr_assert_eq(s.count, 1);
            cr_assert(s.object.size == size_of(v) && s.object.has_crc && s.object.data_type == 9);
            cr_assert(same_attr(s.object.attr, attr_of(v)));
        }
        cr_assert_eq(objects(b), 100);
        b = reopen(b);
    }
    close_store(b);
}

CONFORMANCE(keys_of_any_bytes_and_length)
{
    struct mcfs_backend *b = open_store();
    char longest[MCFS_KEY_MAX], other[MCFS_KEY_MAX];
    memset(longest, 'x', sizeof(longest));
    memcpy(other, longest, sizeof(other));
    other[MCFS_KEY_MAX - 1] = 'y';
    struct mcfs_slice keys[] = {mcfs_slice(longest, sizeof(longest)),
                                mcfs_slice(other, sizeof(other)),
                                mcfs_slice("a/../b\0c", 8),
                                mcfs_slice("a_.._b_c", 8),
                                mcfs_slice("\xff\xfe\n\"*?", 6),
                                mcfs_slice(".", 1),
                                mcfs_slice("..", 2),
                                mcfs_slice("lock", 4)};
    size_t n = sizeof(keys) / sizeof(keys[0]);
    for (size_t i = 0; i < n; i++)
        cr_assert_eq(put_as(b, keys[i], 7, 100 + i), 0);
    for (int round = 0; round < 2; round++, b = reopen(b))
        for (size_t i = 0; i < n; i++)
            cr_assert_eq(read_as(b, keys[i], 7, 100 + i), 0, "%s: key %d", ops->name, (int)i);
    close_store(b);
}

CONFORMANCE(versions_of_a_key_are_objects_of_their_own)
{
    struct mcfs_backend *b = open_store();
    cr_assert_eq(put(b, "k", 3), 0);
    cr_assert_eq(put(b, "k", 4), 0);
    for (int round = 0; round < 2; round++, b = reopen(b)) {
        cr_assert_eq(read_key(b, "k", 3), 0);
        cr_assert_eq(read_key(b, "k", 4), 0);
        cr_assert_eq(read_key(b, "k", 5), MCFS_REPLICA_IS_GONE);
        cr_assert_eq(read_key(b, "j", 3), MCFS_REPLICA_IS_GONE);
    }
    cr_assert_eq(remove_key(b, "k", 3), 0);
    for (int round = 0; round < 2; round++, b = reopen(b)) {
        cr_assert_eq(read_key(b, "k", 3), MCFS_REPLICA_IS_GONE);
        cr_assert_eq(read_key(b, "k", 4), 0);
    }
    cr_assert_eq(put(b, "k", 3), 0, "a version may come back");
    b = reopen(b);
    cr_assert_eq(read_key(b, "k", 3), 0);
    close_store(b);
}

CONFORMANCE(a_version_that_is_stored_is_not_stored_again)
{
    struct mcfs_backend *b = open_store();
    cr_assert_eq(put_as(b, SLICE("k"), 5, 5), 0);
    cr_assert_eq(put_as(b, SLICE("k"), 5, 6), 0);
    cr_assert_eq(objects(b), 1);
    cr_assert_eq(read_as(b, SLICE("k"), 5, 5), 0);
    close_store(b);
}

CONFORMANCE(tenants_do_not_meet)
{
    struct mcfs_backend *b = open_store();
    struct mcfs_backend_put item = {
        .object = {.tenant = SLICE("other"), .key = SLICE("k"), .version = 1, .size = 3},
        .data = "abc"};
    cr_assert_eq(b->ops->put(b, &item, 1), 0);
    cr_assert_eq(read_key(b, "k", 1), MCFS_REPLICA_IS_GONE);
    cr_assert_eq(put(b, "k", 1), 0);
    cr_assert_eq(objects(b), 2);
    cr_assert_eq(remove_key(b, "k", 1), 0);
    cr_assert_eq(objects(b), 1);
    item.object.tenant = mcfs_slice("a\0b", 3);
    cr_assert_eq(b->ops->put(b, &item, 1), 1);
    close_store(b);
}

/* ---- staging files ---- */

static void write_file(const char *path, uint64_t seed, size_t size)
{
    unsigned char *data = malloc(size + 1);
    struct mcfs_error err;
    content(seed, size, data);
    cr_assert_eq(mcfs_write_file(path, data, size, 0600, false, &err), 0);
    free(data);
}

CONFORMANCE(a_staging_file_is_consumed_or_left)
{
    struct mcfs_backend *b = open_store();
    char path[128];
    snprintf(path, sizeof(path), "%s.staging", dir);
    for (uint64_t v = 0; v < 12; v++) {
        struct mcfs_backend_put item = {
            .object = {.tenant = TENANT, .key = SLICE("k"), .version = v + 1, .size = size_of(v)},
            .staging_path = path};
        write_file(path, v, size_of(v));
        cr_assert_eq(b->ops->put(b, &item, 1), 0, "%s: %s", ops->name, item.err.msg);
        cr_assert_neq(access(path, F_OK), 0);
        cr_assert_eq(read_as(b, SLICE("k"), v + 1, v), 0);
        write_file(path, v, size_of(v)); /* stored already: consumed all the same */
        cr_assert_eq(b->ops->put(b, &item, 1), 0);
        cr_assert_neq(access(path, F_OK), 0);
    }
    struct mcfs_backend_put item = {
        .object = {.tenant = TENANT, .key = SLICE("j"), .version = 1, .size = 7},
        .staging_path = path};
    write_file(path, 1, 6);
    cr_assert_eq(b->ops->put(b, &item, 1), 1);
    cr_assert_eq(access(path, F_OK), 0);
    unlink(path);
    cr_assert_eq(b->ops->put(b, &item, 1), 1);
    cr_assert_eq(objects(b), 12);
    b = reopen(b);
    cr_assert_eq(objects(b), 12);
    close_store(b);
}

/* ---- removal, renaming, attributes ---- */

CONFORMANCE(a_reader_outlives_the_removal)
{
    struct mcfs_backend *b = open_store();
    unsigned char want[5000], got[5000];
    content(3, 5000, want);
    cr_assert_eq(put(b, "k", 3), 0);
    struct mcfs_backend_reader *r = b->ops->reader_open(b, TENANT, SLICE("k"), 3, NULL);
    cr_assert_not_null(r);
    cr_assert_eq(remove_key(b, "k", 3), 0);
    cr_assert_eq(read_key(b, "k", 3), MCFS_REPLICA_IS_GONE);
    cr_assert_eq(b->ops->sync(b, NULL), 0);
    for (uint64_t v = 9; v < 40; v++)
        cr_assert_eq(put(b, "l", v), 0);
    cr_assert_eq(r->ops->reader_read(r, got, 5000, 0, NULL), 5000);
    cr_assert_eq(memcmp(want, got, 5000), 0);
    cr_assert_eq(r->ops->reader_verify(r, NULL), 0);
    r->ops->reader_close(r);
    cr_assert_eq(remove_key(b, "k", 3), 0, "what is not stored is removed");
    b = reopen(b);
    cr_assert_eq(read_key(b, "k", 3), MCFS_REPLICA_IS_GONE);
    cr_assert_eq(objects(b), 31);
    close_store(b);
}

CONFORMANCE(reading_in_pieces)
{
    struct mcfs_backend *b = open_store();
    unsigned char want[5000], got[5001];
    content(3, 5000, want);
    cr_assert_eq(put(b, "k", 3), 0);
    struct mcfs_backend_reader *r = b->ops->reader_open(b, TENANT, SLICE("k"), 3, NULL);
    uint64_t offset, length;
    int fd = r->ops->reader_fd(r, &offset, &length);
    cr_assert_eq(length, 5000);
    if (fd >= 0) {
        cr_assert_eq(pread(fd, got, 5000, (off_t)offset), 5000);
        cr_assert_eq(memcmp(want, got, 5000), 0);
    }
    cr_assert_eq(r->ops->reader_read(r, got, 100, 4950, NULL), 50);
    cr_assert_eq(memcmp(want + 4950, got, 50), 0);
    cr_assert_eq(r->ops->reader_read(r, got, 100, 5000, NULL), 0);
    cr_assert_eq(r->ops->reader_read(r, got, 100, UINT64_MAX, NULL), 0);
    cr_assert_eq(r->ops->reader_read(r, got, 0, 17, NULL), 0);
    cr_assert(r->ops->reader_is_verified(r), "what was put is known to be right");
    r->ops->reader_close(r);
    struct mcfs_backend_place p;
    cr_assert_eq(b->ops->locate(b, TENANT, SLICE("k"), 3, &p, NULL), 0);
    char path[700];
    snprintf(path, sizeof(path), "%s/%s", dir, p.file);
    fd = open(path, O_RDONLY);
    cr_assert(p.length == 5000 && p.has_crc && fd >= 0);
    cr_assert_eq(pread(fd, got, 5001, (off_t)p.offset) >= 5000, 1);
    cr_assert_eq(memcmp(want, got, 5000), 0);
    close(fd);
    close_store(b);
}

CONFORMANCE(another_name)
{
    struct mcfs_backend *b = open_store();
    for (uint64_t v = 1; v <= 6; v++)
        cr_assert_eq(put(b, "old", v), 0);
    for (uint64_t v = 1; v <= 6; v++)
        cr_assert_eq(rename_key(b, "old", v, v % 2 ? "n" : "a/much/longer/new/name", v + 10), 0);
    cr_assert_eq(rename_key(b, "old", 1, "x", 1), MCFS_REPLICA_IS_GONE);
    cr_assert_eq(put(b, "taken", 1), 0);
    cr_assert_eq(rename_key(b, "taken", 1, "n", 11), MCFS_OBJECT_ALREADY_EXISTS);
    cr_assert_eq(rename_key(b, "taken", 1, "taken", 1), 0);
    for (int round = 0; round < 2; round++, b = reopen(b)) {
        for (uint64_t v = 1; v <= 6; v++) {
            const char *now = v % 2 ? "n" : "a/much/longer/new/name";
            cr_assert_eq(read_as(b, SLICE(now), v + 10, v), 0);
            cr_assert_eq(read_key(b, "old", v), MCFS_REPLICA_IS_GONE);
            cr_assert_eq(scan_for(b, SLICE(now), v + 10).object.attr.mode, attr_of(v).mode);
        }
        cr_assert_eq(objects(b), 7);
    }
    /* The freed name is another object's. */
    cr_assert_eq(put_as(b, SLICE("old"), 1, 50), 0);
    b = reopen(b);
    cr_assert_eq(read_as(b, SLICE("old"), 1, 50), 0);
    cr_assert_eq(read_as(b, SLICE("n"), 11, 1), 0);
    close_store(b);
}

CONFORMANCE(other_attributes)
{
    struct mcfs_backend *b = open_store();
    struct mcfs_attr attr = {0751, 12, 34, -5};
    cr_assert_eq(put(b, "k", 2), 0);
    cr_assert_eq(b->ops->set_attr(b, TENANT, SLICE("k"), 2, &attr, NULL), 0);
    for (int round = 0; round < 2; round++, b = reopen(b)) {
        struct seen s = scan_for(b, SLICE("k"), 2);
        cr_assert(s.count == 1 && same_attr(s.object.attr, attr));
        cr_assert_eq(read_key(b, "k", 2), 0);
    }
    struct mcfs_error err = MCFS_ERROR_INIT;
    cr_assert_eq(b->ops->set_attr(b, TENANT, SLICE("k"), 3, &attr, &err), -1);
    cr_assert_eq(err.code, MCFS_REPLICA_IS_GONE);
    close_store(b);
}

/* ---- room, owners, looking only ---- */

CONFORMANCE(a_full_store_keeps_what_it_has)
{
    capacity = 500000;
    struct mcfs_backend *b = open_store();
    cr_assert_eq(put(b, "a", 5), 0); /* 150,000 bytes each */
    cr_assert_eq(put(b, "b", 11), 0);
    cr_assert_eq(put(b, "c", 17), 0);
    cr_assert_eq(put(b, "d", 23), MCFS_NO_AVAILABLE_HANDLE);
    cr_assert_eq(put(b, "a", 29), MCFS_NO_AVAILABLE_HANDLE);
    cr_assert_eq(read_key(b, "a", 5), 0);
    cr_assert_eq(remove_key(b, "b", 11), 0);
    cr_assert_eq(put(b, "d", 23), 0, "%s: what was removed leaves room", ops->name);
    b = reopen(b);
    cr_assert_eq(put(b, "e", 35), MCFS_NO_AVAILABLE_HANDLE);
    cr_assert(read_key(b, "a", 5) == 0 && read_key(b, "c", 17) == 0 && read_key(b, "d", 23) == 0);
    cr_assert_eq(objects(b), 3);
    close_store(b);
}

CONFORMANCE(one_owner)
{
    struct mcfs_backend *b = open_store();
    struct mcfs_error err = MCFS_ERROR_INIT;
    char pid[32];
    sprintf(pid, "process %d", (int)getpid());
    cr_assert_null(try_open(false, &err));
    cr_assert_eq(err.code, MCFS_FILE_LOCK_FAIL);
    cr_assert_not_null(strstr(err.msg, pid), "%s", err.msg);
    cr_assert_eq(put(b, "k", 3), 0);
    struct mcfs_backend *looks = try_open(true, &err);
    cr_assert_not_null(looks, "%s", err.msg);
    cr_assert_eq(read_key(looks, "k", 3), 0);
    struct mcfs_attr attr = {0};
    cr_assert_neq(put(looks, "k", 9), 0);
    cr_assert_neq(remove_key(looks, "k", 3), 0);
    cr_assert_neq(rename_key(looks, "k", 3, "l", 3), 0);
    cr_assert_eq(looks->ops->set_attr(looks, TENANT, SLICE("k"), 3, &attr, NULL), -1);
    cr_assert_eq(looks->ops->sync(looks, NULL), 0);
    close_store(looks);
    cr_assert_eq(read_key(b, "k", 3), 0);
    close_store(b);
}

CONFORMANCE(an_unknown_file_is_set_aside)
{
    char path[128];
    close_store(open_store());
    snprintf(path, sizeof(path), "%s/notes.txt", dir);
    write_file(path, 1, 100);
    close_store(open_store());
    cr_assert_neq(access(path, F_OK), 0, "%s", ops->name);
    snprintf(path, sizeof(path), "%s/lost+found/notes.txt", dir);
    cr_assert_eq(access(path, F_OK), 0, "%s", ops->name);
}

CONFORMANCE(another_backends_directory_does_not_fit)
{
    struct mcfs_backend *b = open_store();
    struct mcfs_backend_config config = config_of();
    cr_assert_eq(put(b, "k", 3), 0);
    close_store(b);
    for (size_t i = 0; i < sizeof(writable) / sizeof(writable[0]); i++) {
        const struct mcfs_backend_ops *other = mcfs_backend_find(writable[i]);
        struct mcfs_error err = MCFS_ERROR_INIT;
        int rc = mcfs_backend_fits(other, &config, &err);
        cr_assert_eq(rc, other == ops ? 0 : -1);
        if (rc)
            cr_assert(err.code == MCFS_INVALID_PARAMS && strstr(err.msg, ops->name), "%s", err.msg);
    }
}

/* ---- damage ---- */

static int place_fd(struct mcfs_backend *b, const char *key, uint64_t version,
                    struct mcfs_backend_place *p)
{
    char path[700];
    cr_assert_eq(b->ops->locate(b, TENANT, SLICE(key), version, p, NULL), 0);
    snprintf(path, sizeof(path), "%s/%s", dir, p->file);
    int fd = open(path, O_RDWR);
    cr_assert(fd >= 0);
    return fd;
}

CONFORMANCE(a_flipped_byte_is_found)
{
    struct mcfs_backend_place p;
    struct mcfs_backend *b = open_store();
    cr_assert_eq(put(b, "good", 9), 0);
    cr_assert_eq(put(b, "bad", 3), 0);
    int fd = place_fd(b, "bad", 3, &p);
    b = reopen(b);
    char c;
    cr_assert_eq(pread(fd, &c, 1, (off_t)p.offset + 4000), 1);
    c = (char)(c ^ 1);
    cr_assert_eq(pwrite(fd, &c, 1, (off_t)p.offset + 4000), 1);
    close(fd);
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct mcfs_backend_reader *r = b->ops->reader_open(b, TENANT, SLICE("bad"), 3, &err);
    if (r) { /* a backend may look when it is opened */
        cr_assert(!r->ops->reader_is_verified(r));
        cr_assert_eq(r->ops->reader_verify(r, &err), -1);
        r->ops->reader_close(r);
    }
    cr_assert_eq(err.code, MCFS_CHECKSUM_MISMATCH);
    cr_assert_eq(read_key(b, "bad", 3), MCFS_CHECKSUM_MISMATCH, "it cannot be opened any more");
    cr_assert_eq(read_key(b, "good", 9), 0);
    close_store(b);
}

CONFORMANCE(a_shortened_file_is_found)
{
    struct mcfs_backend_place p;
    struct mcfs_backend *b = open_store();
    cr_assert_eq(put(b, "cut", 5), 0); /* 150,000 bytes: a file of its own everywhere */
    b = reopen(b);
    int fd = place_fd(b, "cut", 5, &p);
    cr_assert_eq(ftruncate(fd, (off_t)(p.offset + 1000)), 0);
    close(fd);
    unsigned char *got = malloc(150000);
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct mcfs_backend_reader *r = b->ops->reader_open(b, TENANT, SLICE("cut"), 5, &err);
    int64_t n = 1;
    for (uint64_t at = 0; r && at < 150000 && n > 0; at += n > 0 ? (uint64_t)n : 0)
        n = r->ops->reader_read(r, got, 150000, at, &err);
    cr_assert_eq(n, -1, "%s", ops->name);
    cr_assert_eq(err.code, MCFS_CHECKSUM_MISMATCH);
    free(got);
    r->ops->reader_close(r);
    close_store(b);
}

/* ---- random operations ---- */

#define KEYS 24
#define VERSIONS 4

/* What is stored: the seed of the bytes, 0: nothing; and their attributes. */
struct model {
    uint64_t seed[KEYS][VERSIONS];
    uint32_t mode[KEYS][VERSIONS];
};

static uint64_t next_random(uint64_t *x)
{
    *x ^= *x << 13, *x ^= *x >> 7, *x ^= *x << 17;
    return *x >> 11;
}

static void key_name(int k, char *out)
{
    sprintf(out, k % 3 ? "key-%d" : "folder/%d/with a longer name than the others", k);
}

/* Whether the store holds what the model says, and nothing else. */
static bool holds(struct mcfs_backend *b, const struct model *m)
{
    int want = 0;
    for (int k = 0; k < KEYS; k++)
        for (int v = 0; v < VERSIONS; v++) {
            char key[64];
            key_name(k, key);
            uint64_t seed = m->seed[k][v];
            want += seed != 0;
            struct seen s = scan_for(b, SLICE(key), (uint64_t)v + 1);
            if (s.count != (seed != 0) || (seed && s.object.attr.mode != m->mode[k][v]) ||
                (seed && s.object.size != size_of(seed)))
                return false;
            int code = read_as(b, SLICE(key), (uint64_t)v + 1, seed ? seed : 1);
            cr_assert_eq(code, seed ? 0 : MCFS_REPLICA_IS_GONE, "%s: %s %d: %s", ops->name, key, v,
                         mcfs_code_name(code));
        }
    return objects(b) == want;
}

struct step {
    int what, k, v, to_k, to_v;
    uint64_t seed;
};

static struct step random_step(uint64_t *x)
{
    return (struct step){.what = (int)(next_random(x) % 8),
                         .k = (int)(next_random(x) % KEYS),
                         .v = (int)(next_random(x) % VERSIONS),
                         .to_k = (int)(next_random(x) % KEYS),
                         .to_v = (int)(next_random(x) % VERSIONS),
                         .seed = next_random(x) % 100000 + 1};
}

static void model_step(struct model *m, const struct step *t)
{
    uint64_t *seed = &m->seed[t->k][t->v], *to_seed = &m->seed[t->to_k][t->to_v];
    uint32_t *mode = &m->mode[t->k][t->v];
    if (t->what < 4 && !*seed) {
        *seed = t->seed;
        *mode = attr_of(t->seed).mode;
    } else if (t->what >= 4 && t->what < 6) {
        *seed = 0;
    } else if (t->what == 6 && *seed && !*to_seed) {
        *to_seed = *seed;
        m->mode[t->to_k][t->to_v] = *mode;
        *seed = 0;
    } else if (t->what == 7 && *seed) {
        *mode = attr_of(t->seed).mode;
    }
}

static int step(struct mcfs_backend *b, const struct step *t)
{
    char key[64], to[64];
    uint64_t version = (uint64_t)t->v + 1;
    struct mcfs_attr attr = attr_of(t->seed);
    struct mcfs_error err = MCFS_ERROR_INIT;
    key_name(t->k, key);
    key_name(t->to_k, to);
    if (t->what < 4)
        return put_as(b, SLICE(key), version, t->seed);
    if (t->what < 6)
        return remove_key(b, key, version);
    if (t->what == 6)
        return rename_key(b, key, version, to, (uint64_t)t->to_v + 1);
    return b->ops->set_attr(b, TENANT, SLICE(key), version, &attr, &err) ? err.code : 0;
}

static void take_step(struct mcfs_backend *b, struct model *m, const struct step *t)
{
    bool there = m->seed[t->k][t->v] != 0, to_there = m->seed[t->to_k][t->to_v] != 0;
    bool same = t->k == t->to_k && t->v == t->to_v;
    int want = t->what < 6                         ? 0
               : t->what == 6 && !there            ? to_there ? 0 : MCFS_REPLICA_IS_GONE
               : t->what == 6 && to_there && !same ? MCFS_OBJECT_ALREADY_EXISTS
               : there                             ? 0
                                                   : MCFS_REPLICA_IS_GONE;
    cr_assert_eq(step(b, t), want, "%s: step %d", ops->name, t->what);
    model_step(m, t);
}

CONFORMANCE(random_operations_with_restarts)
{
    struct model m = {0};
    uint64_t x = 88172645463325252ULL;
    struct mcfs_backend *b = open_store();
    for (int i = 0; i < 3000; i++) {
        struct step t = random_step(&x);
        take_step(b, &m, &t);
        if (i % 100 == 50)
            cr_assert_eq(b->ops->sync(b, NULL), 0);
        if (i % 250 == 0) {
            cr_assert(holds(b, &m), "%s", ops->name);
            b = reopen(b);
            cr_assert(holds(b, &m), "%s", ops->name);
        }
    }
    b = reopen(b);
    cr_assert(holds(b, &m), "%s", ops->name);
    close_store(b);
}

/* The child tells each step when it is done: what it told survives its death. */
static void random_until_killed(int out, uint64_t x, const struct model *start)
{
    struct model m = *start;
    struct mcfs_backend *b = open_store();
    for (int i = 0;; i++) {
        struct step t = random_step(&x);
        take_step(b, &m, &t);
        if (i % 37 == 36)
            b->ops->sync(b, NULL);
        if (write(out, "x", 1) != 1)
            _exit(1);
    }
}

/* Counts the steps of a child that is killed after so many. */
static int run_until_killed(uint64_t x, const struct model *m, int until)
{
    int p[2], told = 0;
    char c;
    cr_assert_eq(pipe(p), 0);
    pid_t pid = fork();
    if (pid == 0) {
        close(p[0]);
        random_until_killed(p[1], x, m);
    }
    close(p[1]);
    while (told < until && read(p[0], &c, 1) == 1)
        told++;
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    while (read(p[0], &c, 1) == 1)
        told++;
    close(p[0]);
    cr_assert_geq(told, until);
    return told;
}

CONFORMANCE(what_was_acknowledged_survives_sigkill)
{
    struct model m = {0};
    uint64_t x = 123456789;
    for (int round = 0; round < 12; round++) {
        int told = run_until_killed(x, &m, 5 + round * 13);
        for (int i = 0; i < told; i++) {
            struct step t = random_step(&x);
            model_step(&m, &t);
        }
        struct mcfs_backend *b = open_store();
        if (!holds(b, &m)) { /* the step after it was done, too, but not told */
            struct step t = random_step(&x);
            model_step(&m, &t);
            cr_assert(holds(b, &m), "%s: round %d", ops->name, round);
        }
        close_store(b);
    }
}

/* ---- many at once ---- */

struct worker {
    struct mcfs_backend *b;
    int number;
    pthread_t thread;
};

static void *work(void *arg)
{
    struct worker *w = arg;
    uint64_t x = (uint64_t)w->number * 7919 + 17;
    for (int i = 0; i < 250; i++) {
        char mine[32], shared[32], moved[32];
        sprintf(mine, "w%d-%d", w->number, i);
        sprintf(moved, "moved%d-%d", w->number, i);
        sprintf(shared, "shared-%d", (int)(next_random(&x) % 8));
        uint64_t v = (uint64_t)i % 6 + 1;
        cr_assert_eq(put(w->b, mine, v), 0);
        cr_assert_eq(read_key(w->b, mine, v), 0);
        int code = put(w->b, shared, v);
        cr_assert_eq(code, 0);
        code = read_key(w->b, shared, v);
        cr_assert(code == 0 || code == MCFS_REPLICA_IS_GONE);
        if (i % 3 == 0)
            cr_assert_eq(remove_key(w->b, shared, v), 0);
        if (i % 5 == 0)
            cr_assert_eq(rename_key(w->b, mine, v, moved, v), 0);
        else if (i % 2)
            cr_assert_eq(remove_key(w->b, mine, v), 0);
        if (i % 50 == 49)
            cr_assert_eq(w->b->ops->sync(w->b, NULL), 0);
        if (i % 100 == 99)
            scan_for(w->b, SLICE(mine), v);
    }
    return NULL;
}

CONFORMANCE(threads)
{
    struct worker workers[4];
    struct mcfs_backend *b = open_store();
    for (int i = 0; i < 4; i++) {
        workers[i] = (struct worker){.b = b, .number = i};
        cr_assert_eq(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(workers[i].thread, NULL);
    int n = objects(b);
    b = reopen(b);
    cr_assert_eq(objects(b), n);
    for (int i = 0; i < 250; i++) {
        char key[32];
        sprintf(key, i % 5 == 0 ? "moved2-%d" : "w2-%d", i);
        cr_assert_eq(read_key(b, key, (uint64_t)i % 6 + 1),
                     i % 5 == 0 || i % 2 == 0 ? 0 : MCFS_REPLICA_IS_GONE);
    }
    close_store(b);
}
