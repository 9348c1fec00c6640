/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/backends.h"
#include "common/crc32c.h"
#include "common/file.h"

#include <criterion/criterion.h>
#include <jansson.h>
#include <openssl/evp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define TENANT MCFS_SLICE_LITERAL("default")

static const struct mcfs_backend_ops *ops;
static char dir[64];

static void setup(void)
{
    ops = mcfs_backend_find("bucket_storage_backend");
    strcpy(dir, "/tmp/mcfs-bucket-XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
}

static void teardown(void)
{
    char command[128];
    snprintf(command, sizeof(command), "rm -rf %s", dir);
    cr_assert_eq(system(command), 0);
}

TestSuite(bucket, .init = setup, .fini = teardown, .timeout = 200);

static struct mcfs_backend *open_with(uint64_t capacity, bool read_only,
                                      struct mcfs_backend_recovery *found)
{
    struct mcfs_backend_config config = {.dir = dir,
                                         .bucket_keys_limit = 20,
                                         .single_object_min_bytes = 100000,
                                         .capacity_bytes = capacity,
                                         .read_only = read_only};
    struct mcfs_backend_recovery ignored;
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct mcfs_backend *b = ops->open(&config, found ? found : &ignored, &err);
    cr_assert_not_null(b, "%s", err.msg);
    return b;
}

static struct mcfs_backend *open_store(void)
{
    return open_with(0, false, NULL);
}

static void close_store(struct mcfs_backend *b)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    cr_assert_eq(ops->close(b, &err), 0, "%s", err.msg);
}

/* The bytes of a version, so that any can be checked without having been remembered. */
static void content(uint64_t version, size_t size, unsigned char *out)
{
    uint64_t x = version * 0x9e3779b97f4a7c15ULL + 1;
    for (size_t i = 0; i < size; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        out[i] = (unsigned char)x;
    }
}

static size_t size_of(uint64_t version)
{
    static const size_t sizes[] = {0, 1, 100, 5000, 40000, 150000};
    return sizes[version % 6];
}

static int put(struct mcfs_backend *b, const char *key, uint64_t version)
{
    size_t size = size_of(version);
    unsigned char *data = malloc(size + 1);
    content(version, size, data);
    struct mcfs_backend_put item = {.object = {.tenant = TENANT,
                                               .key = mcfs_slice_str(key),
                                               .version = version,
                                               .size = size,
                                               .attr = {0640, 1, 2, (int64_t)version}},
                                    .data = data};
    size_t failed = ops->put(b, &item, 1);
    free(data);
    return failed ? item.err.code : 0;
}

static bool is_whole(struct mcfs_backend *b, const char *key, uint64_t version)
{
    size_t size = size_of(version);
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct mcfs_backend_reader *r = ops->reader_open(b, TENANT, mcfs_slice_str(key), version, &err);
    if (!r)
        return false;
    unsigned char *want = malloc(size + 1), *got = malloc(size + 1);
    content(version, size, want);
    int64_t n = ops->reader_read(r, got, size + 1, 0, &err);
    bool ok =
        n == (int64_t)size && memcmp(want, got, size) == 0 && ops->reader_verify(r, &err) == 0;
    free(want);
    free(got);
    ops->reader_close(r);
    return ok;
}

static size_t remove_key(struct mcfs_backend *b, const char *key, uint64_t version)
{
    struct mcfs_backend_name n = {.tenant = TENANT, .key = mcfs_slice_str(key), .version = version};
    return ops->remove(b, &n, 1);
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

Test(bucket, round_trip_with_reopen)
{
    struct mcfs_backend *b = open_store();
    char key[32];
    for (uint64_t v = 1; v <= 120; v++) {
        sprintf(key, "k%d", (int)v);
        cr_assert_eq(put(b, key, v), 0);
        cr_assert_eq(put(b, key, v), 0); /* the same version again is success */
    }
    for (int round = 0; round < 3; round++) {
        for (uint64_t v = 1; v <= 120; v++) {
            sprintf(key, "k%d", (int)v);
            cr_assert(is_whole(b, key, v));
            cr_assert_not(is_whole(b, key, v + 1000));
        }
        cr_assert_eq(objects(b), 120);
        close_store(b);
        b = open_store();
    }
    close_store(b);
}

Test(bucket, remove_rekey_and_attributes_survive)
{
    struct mcfs_backend *b = open_store();
    char key[32], other[32];
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct mcfs_attr attr = {0600, 7, 8, 9};
    for (uint64_t v = 1; v <= 60; v++) {
        sprintf(key, "k%d", (int)v);
        put(b, key, v);
    }
    for (uint64_t v = 1; v <= 60; v++) {
        sprintf(key, "k%d", (int)v);
        if (v % 3 == 0)
            cr_assert_eq(remove_key(b, key, v), 0u);
        if (v % 3 == 1) {
            sprintf(other, "renamed/%d", (int)v);
            cr_assert_eq(ops->rekey(b, TENANT, mcfs_slice_str(key), v, mcfs_slice_str(other),
                                    v + 6000, &err),
                         0);
        }
        if (v % 3 == 2)
            cr_assert_eq(ops->set_attr(b, TENANT, mcfs_slice_str(key), v, &attr, &err), 0);
    }
    for (int round = 0; round < 3; round++) {
        for (uint64_t v = 1; v <= 60; v++) {
            sprintf(key, "k%d", (int)v);
            sprintf(other, "renamed/%d", (int)v);
            cr_assert_eq(is_whole(b, key, v), v % 3 == 2);
            struct mcfs_backend_reader *r =
                ops->reader_open(b, TENANT, mcfs_slice_str(other), v + 6000, &err);
            cr_assert_eq(r != NULL, v % 3 == 1);
            if (r)
                ops->reader_close(r);
        }
        cr_assert_eq(objects(b), 40);
        close_store(b);
        b = open_store();
    }
    cr_assert_neq(ops->rekey(b, TENANT, mcfs_slice_str("none"), 1, mcfs_slice_str("x"), 2, &err),
                  0);
    cr_assert_eq(err.code, MCFS_REPLICA_IS_GONE);
    close_store(b);
}

Test(bucket, open_readers_keep_reading_what_is_removed)
{
    struct mcfs_backend *b = open_store();
    struct mcfs_error err = MCFS_ERROR_INIT;
    for (uint64_t v = 3; v <= 5; v++) {
        unsigned char want[150000], got[150000];
        put(b, "k", v);
        content(v, size_of(v), want);
        struct mcfs_backend_reader *r = ops->reader_open(b, TENANT, mcfs_slice_str("k"), v, &err);
        cr_assert_eq(remove_key(b, "k", v), 0u);
        cr_assert_not(is_whole(b, "k", v));
        cr_assert_eq(ops->reader_read(r, got, sizeof(got), 0, &err), (int64_t)size_of(v));
        cr_assert_arr_eq(got, want, size_of(v));
        ops->reader_close(r);
    }
    cr_assert_eq(objects(b), 0);
    close_store(b);
}

/* A child puts and removes until it is killed, and says of each operation that it is done. */
static void child_main(int fd)
{
    struct mcfs_backend *b = open_store();
    unsigned seed = (unsigned)getpid();
    for (uint64_t v = (uint64_t)getpid() << 20;; v++) {
        char key[32], line[64];
        sprintf(key, "k%llu", (unsigned long long)v % 50);
        if (put(b, key, v))
            _exit(1);
        int n = sprintf(line, "+%s %llu\n", key, (unsigned long long)v);
        if (write(fd, line, (size_t)n) != n)
            _exit(1);
        if (rand_r(&seed) % 3 == 0) {
            n = sprintf(line, "-%s %llu\n", key, (unsigned long long)v);
            if (remove_key(b, key, v) || write(fd, line, (size_t)n) != n)
                _exit(1);
        }
        if (rand_r(&seed) % 20 == 0 && ops->sync(b, NULL))
            _exit(1);
    }
}

Test(bucket, killed_at_any_moment_keeps_what_was_acknowledged)
{
    for (int round = 0; round < 8; round++) {
        int fds[2];
        cr_assert_eq(pipe(fds), 0);
        pid_t pid = fork();
        if (pid == 0) {
            close(fds[0]);
            child_main(fds[1]);
        }
        close(fds[1]);
        /* From its first word on: a busy machine may take long until then. */
        cr_assert_eq(poll(&(struct pollfd){.fd = fds[0], .events = POLLIN}, 1, 60000), 1);
        usleep(20000 + 15000 * (useconds_t)round);
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        struct mcfs_backend *b = open_store();
        FILE *f = fdopen(fds[0], "r");
        char sign, key[32], line[64];
        unsigned long long v;
        /* The last line may have been followed by an operation that was under way. */
        char lines[20000][40];
        int n = 0;
        while (n < 20000 && fgets(line, sizeof(line), f) && strchr(line, '\n'))
            strcpy(lines[n++], line);
        fclose(f);
        cr_assert_gt(n, 0);
        for (int i = 0; i < n; i++) {
            cr_assert_eq(sscanf(lines[i], "%c%31s %llu", &sign, key, &v), 3);
            bool removed = false;
            for (int k = i + 1; k < n && k < i + 3; k++)
                removed |= lines[k][0] == '-' && strcmp(lines[k] + 1, lines[i] + 1) == 0;
            if (sign == '-')
                cr_assert_not(is_whole(b, key, v));
            else if (!removed && i < n - 1)
                cr_assert(is_whole(b, key, v), "%s", lines[i]);
        }
        close_store(b);
    }
}

static void copy_golden(const char *name)
{
    char command[256];
    snprintf(command, sizeof(command), "cp -r %s/%s/. %s && chmod -R u+w %s", TEST_DATA_DIR, name,
             dir, dir);
    cr_assert_eq(system(command), 0);
}

/* Every object that Mooncake's listing calls present is there with its bytes, every other is not.
 */
static void check_golden(const char *name, bool read_only)
{
    char path[256];
    copy_golden(name);
    struct mcfs_backend *b = open_with(0, read_only, NULL);
    snprintf(path, sizeof(path), "%s/%s.json", TEST_DATA_DIR, name);
    json_t *listing = json_load_file(path, 0, NULL), *o;
    size_t i, present = 0;
    cr_assert_not_null(listing);
    json_array_foreach(json_object_get(listing, "objects"), i, o)
    {
        const char *tenant = json_string_value(json_object_get(o, "tenant"));
        json_t *key = json_object_get(o, "key");
        struct mcfs_slice k = mcfs_slice(json_string_value(key), json_string_length(key));
        struct mcfs_backend_reader *r = ops->reader_open(b, mcfs_slice_str(tenant), k, 1, NULL);
        bool there = json_is_true(json_object_get(o, "present"));
        cr_assert_eq(r != NULL, there, "%s", json_string_value(key));
        if (!r)
            continue;
        present++;
        size_t size = (size_t)json_integer_value(json_object_get(o, "size"));
        unsigned char *data = malloc(size + 1), digest[32];
        char hex[65];
        cr_assert_eq(ops->reader_read(r, data, size + 1, 0, NULL), (int64_t)size);
        EVP_Digest(data, size, digest, NULL, EVP_sha256(), NULL);
        for (int k2 = 0; k2 < 32; k2++)
            sprintf(hex + 2 * k2, "%02x", digest[k2]);
        cr_assert_str_eq(hex, json_string_value(json_object_get(o, "sha256")));
        free(data);
        ops->reader_close(r);
    }
    cr_assert_eq(objects(b), (int)present);
    json_decref(listing);
    close_store(b);
}

Test(bucket, golden_directory_is_read_whole)
{
    check_golden("bucket", false);
}

Test(bucket, golden_single_object_buckets_are_read_whole)
{
    check_golden("bucket_single", true);
}

Test(bucket, every_cut_of_a_journal_opens_and_keeps_a_prefix)
{
    struct mcfs_backend *b = open_store();
    char key[32], path[128], source[128];
    pid_t pid;
    close_store(b);
    pid = fork();
    if (pid == 0) {
        b = open_store();
        for (uint64_t v = 1; v <= 4; v++) {
            sprintf(key, "k%d", (int)v);
            put(b, key, v);
        }
        _exit(0);
    }
    waitpid(pid, NULL, 0);
    snprintf(path, sizeof(path), "ls %s/*.journal", dir);
    FILE *f = popen(path, "r");
    cr_assert_not_null(fgets(source, sizeof(source), f));
    pclose(f);
    source[strcspn(source, "\n")] = 0;
    struct stat st;
    cr_assert_eq(stat(source, &st), 0);
    char command[512], whole[64];
    strcpy(whole, dir);
    for (off_t cut = 0; cut < st.st_size; cut++) {
        snprintf(command, sizeof(command), "cp -r %s %s-cut", whole, whole);
        cr_assert_eq(system(command), 0);
        snprintf(dir, sizeof(dir), "%s-cut", whole);
        snprintf(path, sizeof(path), "%s/%s", dir, strrchr(source, '/') + 1);
        cr_assert_eq(truncate(path, cut), 0);
        b = open_store();
        int kept = objects(b);
        for (uint64_t v = 1; v <= 4; v++) {
            sprintf(key, "k%d", (int)v);
            cr_assert_eq(is_whole(b, key, v), (int)v <= kept);
        }
        close_store(b);
        snprintf(command, sizeof(command), "rm -rf %s", dir);
        cr_assert_eq(system(command), 0);
        strcpy(dir, whole);
    }
}

Test(bucket, newer_log_format_is_refused_untouched)
{
    struct mcfs_backend *b = open_store();
    char command[256];
    put(b, "k", 3);
    close_store(b);
    /* Format 2, with the checksum of such a header. */
    snprintf(command, sizeof(command), "ls %s/*.sum", dir);
    FILE *f = popen(command, "r");
    char path[128];
    cr_assert_not_null(fgets(path, sizeof(path), f));
    pclose(f);
    path[strcspn(path, "\n")] = 0;
    unsigned char header[28];
    f = fopen(path, "r+b");
    cr_assert_eq(fread(header, 1, sizeof(header), f), sizeof(header));
    header[8] = 2;
    uint32_t crc = mcfs_crc32c(0, header, 24);
    memcpy(header + 24, &crc, 4);
    rewind(f);
    fwrite(header, 1, sizeof(header), f);
    fclose(f);
    struct mcfs_backend_config config = {.dir = dir};
    struct mcfs_backend_recovery found;
    struct mcfs_error err = MCFS_ERROR_INIT;
    cr_assert_null(ops->open(&config, &found, &err));
    cr_assert(strstr(err.msg, "newer") && strstr(err.msg, ".sum"), "%s", err.msg);
}

Test(bucket, full_tier_says_so_and_loses_nothing)
{
    struct mcfs_backend *b = open_with(200000, false, NULL);
    cr_assert_eq(put(b, "a", 5), 0); /* 150,000 bytes */
    cr_assert_eq(put(b, "b", 11), MCFS_NO_AVAILABLE_HANDLE);
    cr_assert(is_whole(b, "a", 5));
    cr_assert_eq(remove_key(b, "a", 5), 0u);
    cr_assert_eq(put(b, "b", 11), 0);
    close_store(b);
}

struct worker {
    struct mcfs_backend *b;
    unsigned number;
    bool failed;
};

static void *work(void *arg)
{
    struct worker *w = arg;
    char key[32];
    for (uint64_t i = 1; i <= 300; i++) {
        uint64_t v = (uint64_t)w->number * 100000 + i;
        sprintf(key, "k%d", (int)(v % 40));
        w->failed |= put(w->b, key, v) != 0 || !is_whole(w->b, key, v);
        if (i % 2)
            w->failed |= remove_key(w->b, key, v) != 0 || is_whole(w->b, key, v);
        if (i % 50 == 0)
            w->failed |= ops->sync(w->b, NULL) != 0;
    }
    return NULL;
}

Test(bucket, threads_put_read_and_remove_at_once)
{
    struct mcfs_backend *b = open_store();
    struct worker w[4];
    pthread_t threads[4];
    for (unsigned i = 0; i < 4; i++) {
        w[i] = (struct worker){b, i + 1, false};
        pthread_create(&threads[i], NULL, work, &w[i]);
    }
    for (unsigned i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        cr_assert_not(w[i].failed);
    }
    cr_assert_eq(objects(b), 600);
    close_store(b);
    b = open_store();
    cr_assert_eq(objects(b), 600);
    close_store(b);
}
