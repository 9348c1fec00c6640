/* SPDX-License-Identifier: Apache-2.0 */
/* The bucket store after crashes, losses and strangers' writes: nothing whole is lost, nothing
 * broken is served, nothing unknown is deleted. */
#include "backends/backends.h"
#include "backends/bucket/bucket_log.h"
#include "common/crc32c.h"
#include "common/file.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const struct mcfs_backend_ops *ops;
static char dir[64];

static void setup(void)
{
    ops = mcfs_backend_find("bucket_storage_backend");
    strcpy(dir, "/tmp/mcfs-recovery-XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
}

static void shell(const char *fmt, const char *arg)
{
    char command[512];
    snprintf(command, sizeof(command), fmt, arg, arg);
    cr_assert_eq(system(command), 0, "%s", command);
}

static void teardown(void)
{
    shell("rm -rf %s", dir);
}

TestSuite(recovery, .init = setup, .fini = teardown, .timeout = 200);

/* ---- helpers ---- */

static struct mcfs_backend_recovery found;

static struct mcfs_backend *try_open(struct mcfs_error *err)
{
    struct mcfs_backend_config config = {.dir = dir,
                                         .bucket_keys_limit = 20,
                                         .single_object_min_bytes = 100000,
                                         .flush_interval_ms = 3600000};
    return ops->open(&config, &found, err);
}

static struct mcfs_backend *open_store(void)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct mcfs_backend *b = try_open(&err);
    cr_assert_not_null(b, "%s", err.msg);
    return b;
}

static void close_store(struct mcfs_backend *b)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    cr_assert_eq(ops->close(b, &err), 0, "%s", err.msg);
}

/* The bytes of (key, version), so that nothing has to be remembered. */
static unsigned char *content(const char *key, uint64_t version, size_t size)
{
    unsigned char *data = malloc(size + 1);
    uint64_t x = version * 0x9e3779b97f4a7c15ULL + mcfs_crc32c(0, key, strlen(key)) + 1;
    for (size_t i = 0; i < size; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        data[i] = (unsigned char)x;
    }
    return data;
}

static int put(struct mcfs_backend *b, const char *key, uint64_t version, size_t size)
{
    unsigned char *data = content(key, version, size);
    struct mcfs_backend_put item = {.object = {.tenant = MCFS_SLICE_LITERAL("default"),
                                               .key = mcfs_slice_str(key),
                                               .version = version,
                                               .size = size,
                                               .attr = {0640, 1, 2, 3}},
                                    .data = data};
    ops->put(b, &item, 1);
    free(data);
    return item.err.code;
}

/* As `key` was put; it may have another name now. */
static bool is_whole_as(struct mcfs_backend *b, const char *name, uint64_t version, const char *key,
                        uint64_t key_version, size_t size)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct mcfs_backend_reader *r =
        ops->reader_open(b, MCFS_SLICE_LITERAL("default"), mcfs_slice_str(name), version, &err);
    if (!r)
        return false;
    unsigned char *want = content(key, key_version, size), *got = malloc(size + 1);
    bool ok = ops->reader_read(r, got, size + 1, 0, &err) == (int64_t)size &&
              memcmp(want, got, size) == 0 && ops->reader_verify(r, &err) == 0;
    free(want);
    free(got);
    ops->reader_close(r);
    return ok;
}

static bool is_whole(struct mcfs_backend *b, const char *key, uint64_t version, size_t size)
{
    return is_whole_as(b, key, version, key, version, size);
}

static void del(struct mcfs_backend *b, const char *key, uint64_t version)
{
    struct mcfs_backend_name n = {
        .tenant = MCFS_SLICE_LITERAL("default"), .key = mcfs_slice_str(key), .version = version};
    cr_assert_eq(ops->remove(b, &n, 1), 0u, "%s", n.err.msg);
}

static int rekey(struct mcfs_backend *b, const char *from, uint64_t v, const char *to, uint64_t w)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    ops->rekey(b, MCFS_SLICE_LITERAL("default"), mcfs_slice_str(from), v, mcfs_slice_str(to), w,
               &err);
    return err.code;
}

static bool count_one(const struct mcfs_object *o, void *arg)
{
    (void)o;
    ++*(int *)arg;
    return true;
}

static int objects(struct mcfs_backend *b)
{
    int n = 0;
    ops->scan(b, count_one, &n, NULL);
    return n;
}

static struct mcfs_backend_stats stats(struct mcfs_backend *b)
{
    struct mcfs_backend_stats s;
    ops->stats(b, &s);
    return s;
}

static const char *numbered(const char *fmt, int i)
{
    static char name[8][64];
    static int turn;
    turn = (turn + 1) % 8;
    snprintf(name[turn], sizeof(name[0]), fmt, i);
    return name[turn];
}

/* Runs fn with an open store in a process that dies without closing it. */
static void and_die(void (*fn)(struct mcfs_backend *b))
{
    pid_t pid = fork();
    if (pid == 0) {
        struct mcfs_error err = MCFS_ERROR_INIT;
        struct mcfs_backend *b = try_open(&err);
        if (!b)
            _exit(2);
        fn(b);
        kill(getpid(), SIGKILL);
    }
    int status;
    waitpid(pid, &status, 0);
    cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

/* The only file with this suffix (below sub, or in the store itself). */
static const char *file_with(const char *suffix)
{
    static char path[4][600];
    static int turn;
    turn = (turn + 1) % 4;
    path[turn][0] = 0;
    DIR *d = opendir(dir);
    struct dirent *e;
    while ((e = readdir(d))) {
        const char *dot = strchr(e->d_name, '.');
        if (dot && strcmp(dot, suffix) == 0) {
            cr_assert_eq(path[turn][0], 0, "more than one %s", suffix);
            snprintf(path[turn], sizeof(path[0]), "%s/%s", dir, e->d_name);
        }
    }
    closedir(d);
    cr_assert_neq(path[turn][0], 0, "no %s", suffix);
    return path[turn];
}

static size_t files_in(const char *sub)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/%s", dir, sub);
    DIR *d = opendir(path);
    struct dirent *e;
    size_t n = 0;
    while (d && (e = readdir(d)))
        n += e->d_name[0] != '.';
    if (d)
        closedir(d);
    return n;
}

static off_t size_of(const char *path)
{
    struct stat st;
    cr_assert_eq(stat(path, &st), 0, "%s", path);
    return st.st_size;
}

/* A bucket as Mooncake writes it; values one after the other, keys before them. */
static void write_foreign(uint64_t id, int first, int count, size_t size)
{
    char path[128];
    unsigned char meta[65536], places[65536];
    size_t m = 0, p = 0;
    uint64_t at = 0;
    snprintf(path, sizeof(path), "%s/%llu.bucket", dir, (unsigned long long)id);
    FILE *f = fopen(path, "wb");
#define VARINT(buf, n, value)                                                                      \
    do {                                                                                           \
        uint64_t x_ = (value);                                                                     \
        do {                                                                                       \
            (buf)[(n)++] = (unsigned char)((x_ & 0x7f) | (x_ > 0x7f ? 0x80 : 0));                  \
            x_ >>= 7;                                                                              \
        } while (x_);                                                                              \
    } while (0)
    for (int i = first; i < first + count; i++) {
        char key[64];
        size_t n = 8 + (size_t)sprintf(key + 8, "f%d", i);
        memcpy(key, "default", 8);
        unsigned char *data = content(key + 8, id, size), one[64];
        fwrite(key, 1, n, f);
        fwrite(data, 1, size, f);
        free(data);
        meta[m++] = 2 << 3 | 2;
        VARINT(meta, m, n);
        memcpy(meta + m, key, n);
        m += n;
        size_t o = 0;
        one[o++] = 1 << 3;
        VARINT(one, o, at);
        one[o++] = 2 << 3;
        VARINT(one, o, n);
        one[o++] = 3 << 3;
        VARINT(one, o, size);
        places[p++] = 3 << 3 | 2;
        VARINT(places, p, o);
        memcpy(places + p, one, o);
        p += o;
        at += n + size;
    }
    fclose(f);
    snprintf(path, sizeof(path), "%s/%llu.meta", dir, (unsigned long long)id);
    f = fopen(path, "wb");
    fwrite(meta, 1, m, f);
    fwrite(places, 1, p, f);
    fclose(f);
}

/* ---- an independent reader of .meta ---- */

static uint64_t read_varint(const unsigned char **p)
{
    uint64_t v = 0;
    for (int shift = 0;; shift += 7) {
        unsigned char b = *(*p)++;
        v |= (uint64_t)(b & 0x7f) << shift;
        if (!(b & 0x80))
            return v;
    }
}

/* Names the keys of a .meta in out, and checks that each value lies in the .bucket. */
static int read_meta(const char *meta_path, const char *data_path, char keys[][64],
                     uint64_t version, size_t size)
{
    char *meta, *data;
    ssize_t len = mcfs_read_file_alloc(meta_path, 1 << 20, &meta, NULL);
    ssize_t data_len = mcfs_read_file_alloc(data_path, 1 << 28, &data, NULL);
    cr_assert_gt(len, 0);
    int n_keys = 0, n_places = 0;
    const unsigned char *p = (unsigned char *)meta, *end = p + len;
    while (p < end) {
        uint64_t tag = read_varint(&p), value[4] = {0};
        if (tag == 1 << 3) {
            cr_assert_eq(read_varint(&p), (uint64_t)data_len);
        } else if (tag == (2 << 3 | 2)) {
            uint64_t n = read_varint(&p);
            cr_assert(n > 8 && n < 72 && memcmp(p, "default", 8) == 0);
            snprintf(keys[n_keys++], 64, "%.*s", (int)n - 8, p + 8);
            p += n;
        } else {
            cr_assert_eq(tag, 3 << 3 | 2);
            const unsigned char *stop;
            uint64_t n = read_varint(&p);
            for (stop = p + n; p < stop;) {
                uint64_t field = read_varint(&p) >> 3;
                value[field] = read_varint(&p);
            }
            cr_assert_eq(value[3], size);
            cr_assert_geq((uint64_t)data_len, value[1] + value[2] + size);
            unsigned char *want = content(keys[n_places++], version, size);
            cr_assert_arr_eq(data + value[1] + value[2], want, size);
            free(want);
        }
    }
    cr_assert_eq(n_keys, n_places);
    free(meta);
    free(data);
    return n_keys;
}

/* ---- what Mooncake sees ---- */

Test(recovery, meta_of_a_sealed_bucket_reads_as_mooncakes)
{
    char keys[64][64];
    struct mcfs_backend *b = open_store();
    for (int i = 0; i < 15; i++)
        cr_assert_eq(put(b, numbered("k%d", i), 5, 3000), 0);
    close_store(b);
    cr_assert_eq(read_meta(file_with(".meta"), file_with(".bucket"), keys, 5, 3000), 15);
    b = open_store();
    for (int i = 0; i < 15; i += 2)
        del(b, numbered("k%d", i), 5);
    close_store(b);
    cr_assert_eq(read_meta(file_with(".meta"), file_with(".bucket"), keys, 5, 3000), 7);
    b = open_store();
    for (int i = 1; i < 15; i += 2)
        del(b, numbered("k%d", i), 5);
    close_store(b);
    cr_assert_eq(files_in(""), 1u); /* the lock */
}

Test(recovery, large_object_is_a_file_and_a_staging_file_is_not_copied)
{
    char staging[128], keys[8][64];
    struct stat before, after;
    struct mcfs_backend *b = open_store();
    snprintf(staging, sizeof(staging), "%s/.staging-1", dir);
    unsigned char *data = content("big", 9, 300000);
    cr_assert_eq(mcfs_write_file(staging, data, 300000, 0644, false, NULL), 0);
    cr_assert_eq(stat(staging, &before), 0);
    struct mcfs_backend_put item = {.object = {.tenant = MCFS_SLICE_LITERAL("default"),
                                               .key = MCFS_SLICE_LITERAL("big"),
                                               .version = 9,
                                               .size = 300000},
                                    .staging_path = staging};
    cr_assert_eq(ops->put(b, &item, 1), 0u, "%s", item.err.msg);
    cr_assert_eq(access(staging, F_OK), -1);
    cr_assert_eq(stat(file_with(".bucket"), &after), 0);
    cr_assert_eq(before.st_ino, after.st_ino);
    struct mcfs_backend_place place;
    cr_assert_eq(
        ops->locate(b, MCFS_SLICE_LITERAL("default"), MCFS_SLICE_LITERAL("big"), 9, &place, NULL),
        0);
    cr_assert(place.whole_file && place.offset == 0 && place.length == 300000 && place.has_crc);
    cr_assert_eq(place.crc32c, mcfs_crc32c(0, data, 300000));
    free(data);
    close_store(b);
    cr_assert_eq(read_meta(file_with(".meta"), file_with(".bucket"), keys, 9, 300000), 1);
    b = open_store();
    cr_assert(is_whole(b, "big", 9, 300000));
    close_store(b);
}

Test(recovery, removing_one_of_mooncakes_objects_keeps_the_others)
{
    char keys[64][64];
    write_foreign(4000, 0, 10, 5000);
    struct mcfs_backend *b = open_store();
    cr_assert_eq(objects(b), 10);
    del(b, "f3", 1);
    struct mcfs_attr attr = {0600, 1, 2, 3};
    cr_assert_eq(
        ops->set_attr(b, MCFS_SLICE_LITERAL("default"), MCFS_SLICE_LITERAL("f4"), 1, &attr, NULL),
        0);
    cr_assert_eq(rekey(b, "f5", 1, "renamed", 77), 0);
    for (int round = 0; round < 3; round++) {
        cr_assert_eq(objects(b), 9);
        for (int i = 0; i < 10; i++)
            cr_assert_eq(is_whole_as(b, numbered("f%d", i), 1, numbered("f%d", i), 4000, 5000),
                         i != 3 && i != 5);
        cr_assert(is_whole_as(b, "renamed", 77, "f5", 4000, 5000));
        close_store(b);
        b = open_store();
    }
    del(b, "renamed", 77);
    close_store(b);
    cr_assert_eq(read_meta(file_with(".meta"), file_with(".bucket"), keys, 4000, 5000), 8);
}

Test(recovery, of_two_copies_the_younger_counts_and_the_other_stays_away)
{
    write_foreign(4000, 0, 4, 100);
    write_foreign(5000, 2, 4, 100);
    struct mcfs_backend *b = open_store();
    cr_assert_eq(objects(b), 6);
    cr_assert(is_whole_as(b, "f1", 1, "f1", 4000, 100));
    cr_assert(is_whole_as(b, "f2", 1, "f2", 5000, 100));
    cr_assert(is_whole_as(b, "f3", 1, "f3", 5000, 100));
    del(b, "f2", 1);
    close_store(b);
    b = open_store();
    cr_assert_eq(objects(b), 5);
    cr_assert_not(is_whole_as(b, "f2", 1, "f2", 4000, 100));
    cr_assert(is_whole_as(b, "f3", 1, "f3", 5000, 100));
    close_store(b);
}

Test(recovery, a_foreign_object_outside_of_its_file_is_dropped_alone)
{
    write_foreign(4000, 0, 10, 1000);
    cr_assert_eq(truncate(file_with(".bucket"), 9500), 0);
    struct mcfs_backend *b = open_store();
    cr_assert_eq(objects(b), 9);
    cr_assert_eq(found.dropped_objects, 1u);
    cr_assert_eq(found.set_aside_files, 0u);
    close_store(b);
}

Test(recovery, corrupt_meta_is_set_aside_with_its_bucket)
{
    write_foreign(4000, 0, 3, 100);
    write_foreign(5000, 10, 3, 100);
    shell("printf '\\377\\377\\377' > %s/5000.meta", dir);
    struct mcfs_backend *b = open_store();
    cr_assert_eq(objects(b), 3);
    cr_assert_eq(found.set_aside_files, 2u);
    cr_assert_eq(found.buckets, 1u);
    cr_assert_eq(files_in("lost+found"), 2u);
    close_store(b);
}

Test(recovery, strangers_are_set_aside_and_the_daemons_own_left_alone)
{
    shell(
        "cd %s && mkdir sub staging snapshots && mkfifo 7.meta && ln -s /etc/passwd 8.bucket && "
        "touch notes +5.bucket 05.meta ' 6.meta' 99999999999999999999.bucket 9.bucket "
        "format node_id master.sock .hidden 3.meta.tmp",
        dir);
    struct mcfs_backend *b = open_store();
    cr_assert_eq(found.set_aside_files, 9u);
    cr_assert_eq(files_in("lost+found"), 9u);
    cr_assert_eq(files_in(""), 7u); /* five, lock and lost+found */
    cr_assert_eq(put(b, "k", 1, 10), 0);
    close_store(b);
    shell("touch %s/notes", dir);
    b = open_store();
    cr_assert_eq(files_in("lost+found"), 10u); /* a second one of that name is kept beside it */
    cr_assert(is_whole(b, "k", 1, 10));
    close_store(b);
}

static void put_small(struct mcfs_backend *b)
{
    put(b, "k", 1, 10);
}

Test(recovery, reading_only_changes_nothing)
{
    write_foreign(4000, 0, 3, 100);
    write_foreign(5000, 2, 3, 100);
    shell("touch %s/notes %s/9.bucket", dir);
    and_die(put_small);
    shell("touch %s/notes", dir);
    shell("cd %s && find . -printf '%%p %%s %%T@\\n' | sort > %s.before", dir);
    struct mcfs_backend_config config = {.dir = dir, .read_only = true};
    struct mcfs_backend *b = ops->open(&config, &found, NULL);
    cr_assert_not_null(b);
    cr_assert_eq(objects(b), 6);
    cr_assert(is_whole(b, "k", 1, 10));
    cr_assert_neq(put(b, "l", 1, 10), 0);
    struct mcfs_backend_name n = {MCFS_SLICE_LITERAL("default"), MCFS_SLICE_LITERAL("k"), 1, {0}};
    cr_assert_eq(ops->remove(b, &n, 1), 1u);
    cr_assert_eq(n.err.errnum, EROFS);
    close_store(b);
    shell("cd %s && find . -printf '%%p %%s %%T@\\n' | sort | cmp - %s.before", dir);
    shell("rm %s.before", dir);
}

/* ---- crashes ---- */

static void put_sync_put(struct mcfs_backend *b)
{
    for (int i = 0; i < 5; i++)
        put(b, numbered("synced%d", i), 1, 5000);
    ops->sync(b, NULL);
    for (int i = 0; i < 5; i++)
        put(b, numbered("late%d", i), 1, 5000);
}

Test(recovery, power_loss_drops_late_objects_whose_bytes_are_missing)
{
    and_die(put_sync_put);
    /* The last two objects' bytes never reached the disk. */
    const char *path = file_with(".bucket");
    off_t size = size_of(path);
    cr_assert_eq(truncate(path, size - 7000), 0);
    cr_assert_eq(truncate(path, size), 0);
    struct mcfs_backend *b = open_store();
    cr_assert_eq(found.dropped_objects, 2u);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 5; i++) {
            cr_assert(is_whole(b, numbered("synced%d", i), 1, 5000));
            cr_assert_eq(is_whole(b, numbered("late%d", i), 1, 5000), i < 3);
        }
        close_store(b);
        b = open_store();
    }
    cr_assert_eq(found.dropped_objects, 0u);
    close_store(b);
}

static off_t log_before;

static void put_sync_remove(struct mcfs_backend *b)
{
    for (int i = 0; i < 5; i++)
        put(b, numbered("k%d", i), 1, 20000);
    put(b, "big", 1, 200000);
    ops->sync(b, NULL);
    for (int i = 0; i < 4; i++)
        del(b, numbered("k%d", i), 1);
}

Test(recovery, power_loss_that_undoes_a_removal_brings_a_whole_object_back)
{
    and_die(put_sync_remove);
    const char *journal = file_with(".journal");
    log_before = size_of(journal) - 4 * (4 + 4 + 1 + 8 + 4 + 10); /* DELETE records */
    cr_assert_eq(truncate(journal, log_before), 0);
    struct mcfs_backend *b = open_store();
    for (int i = 0; i < 5; i++)
        cr_assert(is_whole(b, numbered("k%d", i), 1, 20000));
    cr_assert(is_whole(b, "big", 1, 200000));
    close_store(b);
}

Test(recovery, unreadable_middle_of_a_log_costs_one_object)
{
    and_die(put_sync_put);
    const char *journal = file_with(".journal");
    int fd = open(journal, O_RDWR);
    cr_assert_eq(pwrite(fd, "XXXX", 4, LOG_HEADER_SIZE + 20), 4);
    close(fd);
    struct mcfs_backend *b = open_store();
    cr_assert_eq(found.set_aside_files, 1u);
    for (int i = 0; i < 5; i++) {
        cr_assert_eq(is_whole(b, numbered("synced%d", i), 1, 5000), i > 0);
        cr_assert(is_whole(b, numbered("late%d", i), 1, 5000));
    }
    close_store(b);
    b = open_store();
    cr_assert_eq(objects(b), 9);
    cr_assert_eq(files_in("lost+found"), 1u);
    close_store(b);
}

static void put_large(struct mcfs_backend *b)
{
    put(b, "big", 1, 200000);
    ops->sync(b, NULL);
}

static void put_large_late(struct mcfs_backend *b)
{
    put(b, "big", 2, 200000);
}

Test(recovery, a_damaged_large_object_is_set_aside_not_deleted)
{
    and_die(put_large);
    cr_assert_eq(truncate(file_with(".bucket"), 100000), 0);
    struct mcfs_backend *b = open_store();
    cr_assert_eq(objects(b), 0);
    cr_assert_eq(files_in("lost+found"), 2u); /* the data and its log */
    close_store(b);
}

Test(recovery, a_log_alone_is_an_unfinished_put_or_a_loss)
{
    and_die(put_large);
    char saved[128];
    snprintf(saved, sizeof(saved), "%s/.saved", dir);
    cr_assert_eq(rename(file_with(".bucket"), saved), 0);
    struct mcfs_backend *b = open_store(); /* it was synced: a loss */
    cr_assert_eq(objects(b), 0);
    cr_assert_eq(files_in("lost+found"), 1u);
    close_store(b);

    shell("rm -rf %s/lost+found", dir);
    and_die(put_large_late);
    unlink(file_with(".bucket"));
    b = open_store(); /* never synced: the file never got its name */
    cr_assert_eq(objects(b), 0);
    cr_assert_eq(files_in("lost+found"), 0u);
    cr_assert_eq(files_in(""), 1u);
    close_store(b);
}

Test(recovery, newer_format_is_refused_before_anything_is_touched)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    unsigned char header[LOG_HEADER_SIZE];
    and_die(put_sync_put);
    shell("touch %s/notes %s/9.bucket", dir);
    int fd = open(file_with(".journal"), O_RDWR);
    cr_assert_eq(read(fd, header, sizeof(header)), (ssize_t)sizeof(header));
    header[8] = 2;
    uint32_t crc = mcfs_crc32c(0, header, sizeof(header) - 4);
    memcpy(header + sizeof(header) - 4, &crc, 4);
    cr_assert_eq(pwrite(fd, header, sizeof(header), 0), (ssize_t)sizeof(header));
    close(fd);
    cr_assert_null(try_open(&err));
    cr_assert_eq(err.code, MCFS_INVALID_VERSION);
    cr_assert(strstr(err.msg, ".journal") && strstr(err.msg, "newer"), "%s", err.msg);
    cr_assert_eq(files_in("lost+found"), 0u);
    cr_assert_eq(files_in(""), 5u);
}

Test(recovery, a_second_owner_is_refused_with_the_pid_of_the_first)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    char pid[32];
    struct mcfs_backend *b = open_store();
    cr_assert_null(try_open(&err));
    cr_assert_eq(err.code, MCFS_FILE_LOCK_FAIL);
    sprintf(pid, "%d", (int)getpid());
    cr_assert(strstr(err.msg, pid), "%s", err.msg);
    close_store(b);
}

/* ---- space ---- */

Test(recovery, removed_bytes_come_back_and_neighbours_stay)
{
    struct stat full, less;
    struct mcfs_backend *b = open_store();
    for (int i = 0; i < 19; i++)
        cr_assert_eq(put(b, numbered("k%d", i), 1, 50000), 0);
    cr_assert_eq(ops->sync(b, NULL), 0);
    cr_assert_eq(stat(file_with(".bucket"), &full), 0);
    uint64_t used = stats(b).used_bytes;
    cr_assert_geq(used, 19u * 50000u);
    for (int i = 0; i < 19; i++)
        if (i % 4)
            del(b, numbered("k%d", i), 1);
    cr_assert_eq(objects(b), 5);
    close_store(b); /* flushes */
    cr_assert_eq(stat(file_with(".bucket"), &less), 0);
    cr_assert_lt(less.st_blocks, full.st_blocks / 2);
    b = open_store();
    cr_assert_lt(stats(b).used_bytes, used / 2);
    for (int i = 0; i < 19; i += 4)
        cr_assert(is_whole(b, numbered("k%d", i), 1, 50000));
    for (int i = 0; i < 19; i += 4)
        del(b, numbered("k%d", i), 1);
    cr_assert_eq(stats(b).used_bytes, 0u);
    cr_assert_eq(stats(b).dead_bytes, 0u);
    close_store(b);
}

Test(recovery, a_full_tier_takes_objects_again_as_soon_as_others_are_removed)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct mcfs_backend_config config = {
        .dir = dir, .capacity_bytes = 1 << 20, .flush_interval_ms = 3600000};
    struct mcfs_backend *b = ops->open(&config, &found, &err);
    cr_assert_not_null(b);
    int n = 0, code;
    while ((code = put(b, numbered("k%d", n), 1, 30000)) == 0)
        n++;
    cr_assert_eq(code, MCFS_NO_AVAILABLE_HANDLE);
    cr_assert_eq(n, (1 << 20) / 30010);
    cr_assert_eq(put(b, "k0", 1, 30000), 0); /* it is stored already */
    del(b, "k3", 1);
    del(b, "k4", 1);
    cr_assert_eq(put(b, "new", 1, 30000), 0);
    for (int i = 0; i < n; i++)
        cr_assert_eq(is_whole(b, numbered("k%d", i), 1, 30000), i != 3 && i != 4);
    cr_assert(is_whole(b, "new", 1, 30000));
    close_store(b);
}

Test(recovery, a_write_that_fails_half_way_leaves_the_bucket_usable)
{
    struct mcfs_backend *b = open_store();
    struct rlimit old, limit;
    cr_assert_eq(put(b, "a", 1, 40000), 0);
    uint64_t used = stats(b).used_bytes;
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &old);
    limit = old;
    limit.rlim_cur = 60000;
    setrlimit(RLIMIT_FSIZE, &limit);
    cr_assert_neq(put(b, "b", 1, 40000), 0);
    cr_assert_neq(put(b, "big", 1, 150000), 0);
    setrlimit(RLIMIT_FSIZE, &old);
    cr_assert_eq(stats(b).used_bytes, used);
    cr_assert_eq(put(b, "c", 1, 40000), 0);
    cr_assert_eq(size_of(file_with(".bucket")), 2 * 40009);
    close_store(b);
    b = open_store();
    cr_assert_eq(objects(b), 2);
    cr_assert(is_whole(b, "a", 1, 40000) && is_whole(b, "c", 1, 40000));
    cr_assert_eq(files_in("lost+found"), 0u);
    close_store(b);
}

Test(recovery, endless_changes_do_not_make_an_endless_log)
{
    struct mcfs_backend *b = open_store();
    for (int i = 0; i < 20; i++) /* seals */
        put(b, numbered("k%d", i), 1, 100);
    for (int i = 0; i < 20000; i++) {
        struct mcfs_attr attr = {0600, 1, 2, i};
        cr_assert_eq(ops->set_attr(b, MCFS_SLICE_LITERAL("default"), MCFS_SLICE_LITERAL("k7"), 1,
                                   &attr, NULL),
                     0);
    }
    close_store(b);
    cr_assert_lt(size_of(file_with(".sum")), 100000);
    b = open_store();
    cr_assert_eq(objects(b), 20);
    for (int i = 0; i < 20; i++)
        cr_assert(is_whole(b, numbered("k%d", i), 1, 100));
    close_store(b);
}

/* ---- many at once ---- */

Test(recovery, few_descriptors_are_enough_for_many_buckets)
{
    struct rlimit old, limit;
    struct mcfs_backend *b;
    getrlimit(RLIMIT_NOFILE, &old);
    limit = (struct rlimit){80, old.rlim_max};
    setrlimit(RLIMIT_NOFILE, &limit);
    b = open_store();
    for (int i = 0; i < 200; i++)
        cr_assert_eq(put(b, numbered("k%d", i), 1, 100000), 0);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 200; i++)
            cr_assert(is_whole(b, numbered("k%d", i), 1, 100000));
        close_store(b);
        b = open_store();
    }
    cr_assert_eq(stats(b).buckets, 200u);
    close_store(b);
    setrlimit(RLIMIT_NOFILE, &old);
}

static void *put_same(void *arg)
{
    struct mcfs_backend *b = arg;
    for (int i = 0; i < 200; i++)
        if (put(b, "k", (uint64_t)i + 1, 500))
            return arg;
    return NULL;
}

Test(recovery, threads_that_put_the_same_version_store_it_once)
{
    struct mcfs_backend *b = open_store();
    pthread_t threads[4];
    void *failed;
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, put_same, b);
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], &failed);
        cr_assert_null(failed);
    }
    cr_assert_eq(objects(b), 200);
    cr_assert_eq(stats(b).used_bytes, 200u * (500 + 9));
    close_store(b);
    b = open_store();
    cr_assert_eq(objects(b), 200);
    close_store(b);
}

struct worker {
    struct mcfs_backend *b;
    unsigned number;
    bool failed;
};

static void *do_everything(void *arg)
{
    struct worker *w = arg;
    struct mcfs_backend *b = w->b;
    for (uint64_t i = 1; i <= 400; i++) {
        uint64_t v = (uint64_t)w->number * 1000000 + i;
        size_t size = i % 10 == 0 ? 120000 : 700 + i * 20;
        char key[32], to[32];
        snprintf(key, sizeof(key), "k%u", (unsigned)(i % 50));
        snprintf(to, sizeof(to), "to/%u", (unsigned)(i % 50));
        struct mcfs_attr attr = {0600, 1, 2, (int64_t)i};
        struct mcfs_backend_place place;
        w->failed |= put(b, key, v, size) != 0;
        struct mcfs_backend_reader *r =
            ops->reader_open(b, MCFS_SLICE_LITERAL("default"), mcfs_slice_str(key), v, NULL);
        w->failed |= !r || rekey(b, key, v, to, v + 500000) != 0;
        w->failed |= ops->set_attr(b, MCFS_SLICE_LITERAL("default"), mcfs_slice_str(to), v + 500000,
                                   &attr, NULL) != 0;
        w->failed |= ops->locate(b, MCFS_SLICE_LITERAL("default"), mcfs_slice_str(to), v + 500000,
                                 &place, NULL) != 0;
        w->failed |= !is_whole_as(b, to, v + 500000, key, v, size);
        if (i % 3)
            del(b, to, v + 500000);
        w->failed |= r && ops->reader_verify(r, NULL) != 0;
        if (r)
            ops->reader_close(r);
        if (i % 40 == 0) {
            objects(b);
            w->failed |= ops->sync(b, NULL) != 0 || stats(b).objects == 0;
        }
    }
    return NULL;
}

Test(recovery, threads_do_everything_at_once_under_a_busy_flusher)
{
    struct mcfs_backend_config config = {.dir = dir,
                                         .bucket_keys_limit = 8,
                                         .single_object_min_bytes = 100000,
                                         .flush_interval_ms = 1};
    struct mcfs_backend *b = ops->open(&config, &found, NULL);
    struct worker w[4];
    pthread_t threads[4];
    for (unsigned i = 0; i < 4; i++) {
        w[i] = (struct worker){b, i + 1, false};
        pthread_create(&threads[i], NULL, do_everything, &w[i]);
    }
    for (unsigned i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        cr_assert_not(w[i].failed);
    }
    cr_assert_eq(objects(b), 4 * 133);
    close_store(b);
    b = open_store();
    cr_assert_eq(objects(b), 4 * 133);
    cr_assert_eq(found.dropped_objects, 0u);
    cr_assert_eq(files_in("lost+found"), 0u);
    close_store(b);
}

Test(recovery, renaming_onto_another_version_is_refused_and_onto_itself_is_nothing)
{
    struct mcfs_backend *b = open_store();
    put(b, "a", 1, 100);
    put(b, "b", 2, 100);
    cr_assert_eq(rekey(b, "a", 1, "b", 2), MCFS_OBJECT_ALREADY_EXISTS);
    cr_assert_eq(rekey(b, "a", 1, "a", 1), 0);
    cr_assert_eq(rekey(b, "a", 1, "b", 3), 0);
    cr_assert_eq(rekey(b, "a", 1, "b", 3), 0); /* a repetition */
    cr_assert_eq(rekey(b, "a", 1, "c", 4), MCFS_REPLICA_IS_GONE);
    for (int round = 0; round < 2; round++) {
        cr_assert_eq(objects(b), 2);
        cr_assert(is_whole(b, "b", 2, 100));
        cr_assert(is_whole_as(b, "b", 3, "a", 1, 100));
        close_store(b);
        b = open_store();
    }
    close_store(b);
}

Test(recovery, names_and_sizes_that_cannot_be_are_refused)
{
    struct mcfs_backend *b = open_store();
    char key[MCFS_KEY_MAX + 2];
    memset(key, 'k', sizeof(key));
    struct mcfs_backend_put item = {.object = {.tenant = MCFS_SLICE_LITERAL("default"),
                                               .key = mcfs_slice(key, MCFS_KEY_MAX + 1),
                                               .version = 1,
                                               .size = 1},
                                    .data = "x"};
    cr_assert_eq(ops->put(b, &item, 1), 1u);
    cr_assert_eq(item.err.code, MCFS_INVALID_KEY);
    item.object.key.len = MCFS_KEY_MAX;
    cr_assert_eq(ops->put(b, &item, 1), 0u);
    item.object.tenant = MCFS_SLICE_LITERAL("a\0b");
    cr_assert_eq(ops->put(b, &item, 1), 1u);
    item.object.tenant = MCFS_SLICE_LITERAL("t");
    item.data = NULL;
    cr_assert_eq(ops->put(b, &item, 1), 1u); /* neither data nor file */
    item.object.size = 0;
    cr_assert_eq(ops->put(b, &item, 1), 0u);
    close_store(b);
    b = open_store();
    cr_assert_eq(objects(b), 2);
    close_store(b);
}

/* As a copy of a part of a log behind it; nothing but changes brings two records together. */
Test(recovery, a_put_that_a_log_tells_twice)
{
    struct mcfs_backend *b = open_store();
    char key[8];
    for (int i = 0; i < 5; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        cr_assert_eq(put(b, key, (uint64_t)i + 1, 1000), MCFS_OK);
    }
    close_store(b);
    shell("cd %s && tail -c +29 *.sum > twice && cat twice >> *.sum && rm twice", dir);
    for (int left = 5; left > 2; left--) {
        b = open_store();
        cr_assert_eq(objects(b), left);
        cr_assert_eq(found.objects, (uint64_t)left);
        for (int i = 5 - left; i < 5; i++) {
            snprintf(key, sizeof(key), "k%d", i);
            cr_assert(is_whole(b, key, (uint64_t)i + 1, 1000));
        }
        snprintf(key, sizeof(key), "k%d", 5 - left);
        del(b, key, (uint64_t)(5 - left) + 1);
        close_store(b);
    }
}
