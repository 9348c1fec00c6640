/* SPDX-License-Identifier: Apache-2.0 */
/* Directories that Mooncake wrote in its other two layouts: every object that it would find is
 * found, with its bytes; every other is not; damage is dropped with a reason; nothing is written.
 */
#include "backends/backends.h"
#include "backends/file_per_key/file_per_key.h"
#include "backends/offset/offset.h"
#include "common/crc32c.h"
#include "common/file.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <jansson.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char dir[64];

static void setup(void)
{
    strcpy(dir, "/tmp/mcfs-foreign-XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
}

static void shell(const char *fmt, const char *arg)
{
    char command[512];
    snprintf(command, sizeof(command), fmt, arg, dir, dir);
    cr_assert_eq(system(command), 0, "%s", command);
}

static void teardown(void)
{
    shell("chmod -R u+w %2$s && rm -rf %2$s", "");
}

TestSuite(foreign, .init = setup, .fini = teardown, .timeout = 200);

/* ---- helpers ---- */

static void copy_golden(const char *name)
{
    shell("cp -r " TEST_DATA_DIR "/%s/. %s && chmod -R u+w %s", name);
}

static struct mcfs_backend_recovery found;

static struct mcfs_backend *open_dir(const struct mcfs_backend_ops *ops, struct mcfs_error *err)
{
    struct mcfs_backend_config config = {.dir = dir, .read_only = true};
    return ops->open(&config, &found, err);
}

static struct mcfs_backend *open_recognised(void)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    const struct mcfs_backend_ops *ops = mcfs_backend_recognise(dir, NULL, &err);
    cr_assert_not_null(ops, "%s", err.msg);
    struct mcfs_backend *b = open_dir(ops, &err);
    cr_assert_not_null(b, "%s", err.msg);
    return b;
}

struct search {
    struct mcfs_slice tenant, key;
    uint64_t version, objects;
};

static bool match(const struct mcfs_object *o, void *arg)
{
    struct search *s = arg;
    s->objects++;
    if (mcfs_slice_eq(o->tenant, s->tenant) && mcfs_slice_eq(o->key, s->key))
        s->version = o->version;
    return true;
}

/* The version that is stored, 0: none. */
static uint64_t version_of(struct mcfs_backend *b, struct mcfs_slice tenant, struct mcfs_slice key)
{
    struct search s = {tenant, key, 0, 0};
    cr_assert_eq(b->ops->scan(b, match, &s, NULL), 0);
    return s.version;
}

static uint64_t count(struct mcfs_backend *b)
{
    struct search s = {{"", 0}, {"", 0}, 0, 0};
    cr_assert_eq(b->ops->scan(b, match, &s, NULL), 0);
    return s.objects;
}

static void check_bytes(struct mcfs_backend_reader *r, const json_t *o)
{
    size_t size = (size_t)json_integer_value(json_object_get(o, "size"));
    unsigned char *data = malloc(size + 1), digest[32];
    struct mcfs_error err = MCFS_ERROR_INIT;
    char hex[65];
    cr_assert_eq(r->ops->reader_read(r, data, size + 1, 0, &err), (int64_t)size, "%s", err.msg);
    EVP_Digest(data, size, digest, NULL, EVP_sha256(), NULL);
    for (int i = 0; i < 32; i++)
        sprintf(hex + 2 * i, "%02x", digest[i]);
    cr_assert_str_eq(hex, json_string_value(json_object_get(o, "sha256")));
    cr_assert_eq(r->ops->reader_verify(r, &err), 0, "%s", err.msg);
    free(data);
}

static void check_golden(const char *name)
{
    char path[256];
    snprintf(path, sizeof(path), "%s/%s.json", TEST_DATA_DIR, name);
    json_t *listing = json_load_file(path, JSON_ALLOW_NUL, NULL), *o;
    struct mcfs_backend *b = open_recognised();
    size_t i, present = 0;
    cr_assert_not_null(listing);
    json_array_foreach(json_object_get(listing, "objects"), i, o)
    {
        json_t *k = json_object_get(o, "key");
        struct mcfs_slice tenant = mcfs_slice_str(json_string_value(json_object_get(o, "tenant")));
        struct mcfs_slice key = mcfs_slice(json_string_value(k), json_string_length(k));
        struct mcfs_backend_place place;
        uint64_t version = version_of(b, tenant, key);
        cr_assert_eq(version != 0, json_is_true(json_object_get(o, "present")), "%.*s",
                     MCFS_SLICE_ARG(key));
        if (!version)
            continue;
        present++;
        struct mcfs_backend_reader *r = b->ops->reader_open(b, tenant, key, version, NULL);
        cr_assert_not_null(r);
        check_bytes(r, o);
        b->ops->reader_close(r);
        cr_assert_null(b->ops->reader_open(b, tenant, key, version + 1, NULL));
        cr_assert_eq(b->ops->locate(b, tenant, key, version, &place, NULL), 0);
        cr_assert_eq((json_int_t)place.length, json_integer_value(json_object_get(o, "size")));
        if (json_object_get(o, "path"))
            cr_assert_str_eq(place.file, json_string_value(json_object_get(o, "path")));
    }
    cr_assert_eq(count(b), present);
    json_decref(listing);
    b->ops->close(b, NULL);
}

Test(foreign, strict_checkpoint_is_read_whole)
{
    copy_golden("offset_strict");
    check_golden("offset_strict");
    cr_assert_eq(found.objects, 200);
    cr_assert_eq(found.dropped_objects, 0);
}

Test(foreign, relaxed_checkpoint_without_checksums_is_read_whole)
{
    copy_golden("offset_relaxed");
    check_golden("offset_relaxed");
}

Test(foreign, after_a_crash_only_what_the_checkpoint_knows_is_found)
{
    copy_golden("offset_crash");
    check_golden("offset_crash");
    cr_assert_eq(found.objects, 18);
    cr_assert_eq(found.dropped_objects, 2);
}

Test(foreign, files_by_key_are_read_whole)
{
    copy_golden("file_per_key");
    check_golden("file_per_key");
    cr_assert_eq(found.objects, 200);
}

/* ---- damage ---- */

struct collected {
    unsigned kinds[FINDING_STALE + 1];
    uint64_t offset;
    char file[256];
};

static void collect(const struct finding *f, void *arg)
{
    struct collected *c = arg;
    c->kinds[f->kind]++;
    c->offset = f->offset;
    snprintf(c->file, sizeof(c->file), "%s", f->file);
}

static void poke(const char *file, uint64_t at, const void *bytes, size_t len)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/%s", dir, file);
    int fd = open(path, O_RDWR);
    cr_assert_geq(fd, 0);
    cr_assert_eq(mcfs_pwrite_full(fd, bytes, len, at), 0);
    close(fd);
}

/* A record of offset_strict: where it and its value lie. */
static void a_record(uint64_t *record, uint64_t *value)
{
    struct mcfs_backend *b = open_recognised();
    struct mcfs_backend_place place;
    struct mcfs_slice tenant = MCFS_SLICE_LITERAL("default"), key = MCFS_SLICE_LITERAL("obj-000");
    cr_assert_eq(b->ops->locate(b, tenant, key, version_of(b, tenant, key), &place, NULL), 0);
    *value = place.offset;
    *record = place.offset - 4096;
    b->ops->close(b, NULL);
}

static struct collected read_offset(bool tolerant, uint64_t objects)
{
    struct collected got = {0};
    struct finding_sink sink = {.report = collect, .arg = &got};
    struct mcfs_error err = MCFS_ERROR_INIT;
    uint64_t dropped;
    struct catalog *c = offset_read(dir, tolerant, NULL, &sink, &dropped, &err);
    cr_assert_not_null(c, "%s", err.msg);
    cr_assert_eq(c->count, objects);
    catalog_free(c);
    return got;
}

Test(foreign, a_record_whose_bytes_changed_is_dropped)
{
    uint64_t record, value;
    copy_golden("offset_strict");
    a_record(&record, &value);
    poke(OFFSET_DATA, value, "\xff", 1);
    struct collected got = read_offset(false, 199);
    cr_assert_eq(got.kinds[FINDING_CHECKSUM], 1);
    cr_assert_eq(got.offset, record);
}

Test(foreign, a_record_with_unknown_flags_is_refused)
{
    uint64_t record, value;
    copy_golden("offset_strict");
    a_record(&record, &value);
    poke(OFFSET_DATA, record + 16, "\x03", 1);
    cr_assert_eq(read_offset(false, 199).kinds[FINDING_RECORD], 1);
}

Test(foreign, a_record_larger_than_its_room_is_dropped)
{
    uint64_t record, value;
    copy_golden("offset_strict");
    a_record(&record, &value);
    poke(OFFSET_DATA, record + 4, "\xff\xff\xff\x0f", 4);
    cr_assert_eq(read_offset(false, 199).kinds[FINDING_RANGE], 1);
}

Test(foreign, a_record_whose_head_is_nothing_is_dropped)
{
    uint64_t record, value;
    copy_golden("offset_strict");
    a_record(&record, &value);
    poke(OFFSET_DATA, record, "\xff\xff\xff\xff", 4);
    cr_assert_eq(read_offset(false, 199).kinds[FINDING_RECORD], 1);
}

Test(foreign, records_beyond_the_files_end_are_dropped)
{
    char path[128];
    copy_golden("offset_strict");
    snprintf(path, sizeof(path), "%s/" OFFSET_DATA, dir);
    cr_assert_eq(truncate(path, 1 << 20), 0);
    struct collected got = {0};
    struct finding_sink sink = {.report = collect, .arg = &got};
    uint64_t dropped;
    struct catalog *c = offset_read(dir, false, NULL, &sink, &dropped, NULL);
    cr_assert_not_null(c);
    cr_assert_gt(c->count, 0);
    cr_assert_lt(c->count, 200);
    cr_assert_eq(c->count + dropped, 200);
    cr_assert_eq(got.kinds[FINDING_RANGE], dropped);
    catalog_free(c);
}

/* Adds bytes behind the checkpoint: protobuf lets a later field win, or be repeated. */
static void append_to_checkpoint(const void *bytes, size_t len)
{
    struct stat st;
    char path[128];
    snprintf(path, sizeof(path), "%s/" OFFSET_META, dir);
    cr_assert_eq(stat(path, &st), 0);
    poke(OFFSET_META, (uint64_t)st.st_size, bytes, len);
}

Test(foreign, records_from_after_the_checkpoint_and_evicted_ones_are_dropped)
{
    copy_golden("offset_strict");
    append_to_checkpoint(
        "\x2a\x0f"
        "default\0obj-000",
        17);
    cr_assert_eq(read_offset(false, 199).kinds[FINDING_STALE], 1);
    append_to_checkpoint("\x18\x00", 2); /* insert_seq = 0 */
    cr_assert_eq(read_offset(false, 0).kinds[FINDING_STALE], 200);
}

Test(foreign, another_version_is_an_empty_store)
{
    copy_golden("offset_strict");
    append_to_checkpoint("\x08\x04", 2);
    cr_assert_eq(read_offset(false, 0).kinds[FINDING_STALE], 1);
}

Test(foreign, a_checkpoint_that_is_missing_is_an_empty_store_and_a_broken_one_an_error)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    char path[128];
    copy_golden("offset_strict");
    snprintf(path, sizeof(path), "%s/" OFFSET_META, dir);
    cr_assert_eq(truncate(path, 5000), 0);
    cr_assert_null(open_dir(&mcfs_offset_ops, &err));
    cr_assert_not_null(strstr(err.msg, OFFSET_META), "%s", err.msg);
    cr_assert_eq(read_offset(true, 0).kinds[FINDING_INDEX], 1);
    cr_assert_eq(unlink(path), 0);
    cr_assert_eq(read_offset(false, 0).kinds[FINDING_STALE], 1);
}

Test(foreign, the_younger_of_two_records_of_a_key_counts)
{
    uint64_t record, value;
    struct mcfs_slice tenant = MCFS_SLICE_LITERAL("default"), key = MCFS_SLICE_LITERAL("obj-000");
    copy_golden("offset_relaxed"); /* no checksums: a record can be renamed */
    a_record(&record, &value);
    struct mcfs_backend *b = open_recognised();
    uint64_t version = version_of(b, tenant, key);
    b->ops->close(b, NULL);
    /* The record of the next bare key of the same length does not exist: give obj-000's name, with
     * an older and then a younger number, to tenant-b's "a/b/c/../002.bin" cut to its length. */
    b = open_recognised();
    struct mcfs_slice other_tenant = MCFS_SLICE_LITERAL("tenant-b");
    struct mcfs_slice other = MCFS_SLICE_LITERAL("a/b/c/../002.bin");
    struct mcfs_backend_place place;
    cr_assert_eq(
        b->ops->locate(b, other_tenant, other, version_of(b, other_tenant, other), &place, NULL),
        0);
    b->ops->close(b, NULL);
    uint64_t at = place.offset - 4096, seq = 0;
    poke(OFFSET_DATA, at, "\x0f\0\0\0", 4);
    poke(OFFSET_DATA, at + 24, "default\0obj-000", 15);
    poke(OFFSET_DATA, at + 8, &seq, 8);
    struct collected got = read_offset(false, 59);
    cr_assert_eq(got.kinds[FINDING_DUPLICATE], 1);
    cr_assert_eq(got.offset, at);
    poke(OFFSET_DATA, record + 8, &seq, 8);
    seq = version - 1;
    poke(OFFSET_DATA, at + 8, &seq, 8);
    got = read_offset(false, 59);
    cr_assert_eq(got.kinds[FINDING_DUPLICATE], 1);
    cr_assert_eq(got.offset, record);
}

Test(foreign, a_record_that_its_owner_overwrites_is_an_error_not_other_bytes)
{
    uint64_t record, value;
    struct mcfs_slice tenant = MCFS_SLICE_LITERAL("default"), key = MCFS_SLICE_LITERAL("obj-000");
    struct mcfs_error err = MCFS_ERROR_INIT;
    char buf[4096];
    copy_golden("offset_strict");
    a_record(&record, &value);
    struct mcfs_backend *b = open_recognised();
    struct mcfs_backend_reader *r =
        b->ops->reader_open(b, tenant, key, version_of(b, tenant, key), NULL);
    cr_assert_eq(b->ops->reader_read(r, buf, sizeof(buf), 0, NULL), 1);
    poke(OFFSET_DATA, record + 8, "\x77", 1);
    cr_assert_eq(b->ops->reader_read(r, buf, sizeof(buf), 0, &err), -1);
    cr_assert_not_null(strstr(err.msg, OFFSET_DATA), "%s", err.msg);
    b->ops->reader_close(r);
    b->ops->close(b, NULL);
}

Test(foreign, what_was_checked_and_is_what_it_was_is_not_read_again)
{
    uint64_t record, value;
    copy_golden("offset_strict");
    a_record(&record, &value);
    struct mcfs_backend *before = open_recognised();
    struct mcfs_backend_config config = {.dir = dir, .read_only = true, .previous = before};
    poke(OFFSET_DATA, value, "\xff", 1);
    struct mcfs_backend *b = mcfs_offset_ops.open(&config, &found, NULL);
    cr_assert_eq(count(b), 200);
    b->ops->close(b, NULL);
    /* With another number it is another record. */
    poke(OFFSET_DATA, record + 8, "\x01", 1);
    b = mcfs_offset_ops.open(&config, &found, NULL);
    cr_assert_eq(count(b), 199);
    b->ops->close(b, NULL);
    before->ops->close(before, NULL);
}

#define A_FILE "file_per_key_dir/m/e/default_obj-000"

static struct collected read_files(uint64_t objects)
{
    struct collected got = {0};
    struct finding_sink sink = {.report = collect, .arg = &got};
    struct mcfs_error err = MCFS_ERROR_INIT;
    uint64_t dropped;
    struct catalog *c = file_per_key_read(dir, NULL, &sink, &dropped, &err);
    cr_assert_not_null(c, "%s", err.msg);
    cr_assert_eq(c->count, objects);
    catalog_free(c);
    return got;
}

Test(foreign, a_file_cut_short_is_dropped_whatever_its_length)
{
    char path[256];
    struct stat st;
    copy_golden("file_per_key");
    snprintf(path, sizeof(path), "%s/" A_FILE, dir);
    cr_assert_eq(stat(path, &st), 0);
    for (off_t len = st.st_size - 1; len >= 0; len--) {
        cr_assert_eq(truncate(path, len), 0);
        /* Cut between its two fields it is a whole message with an empty value. */
        bool whole = len == 2 + 15;
        struct collected got = read_files(whole ? 200 : 199);
        cr_assert_eq(got.kinds[FINDING_RECORD], !whole, "%d", (int)len);
    }
}

Test(foreign, a_file_in_another_place_and_a_second_copy_are_reported)
{
    copy_golden("file_per_key");
    shell("cp %2$s/%1$s %2$s/file_per_key_dir/a/a/copy", A_FILE);
    struct collected got = read_files(200);
    cr_assert_eq(got.kinds[FINDING_MISPLACED], 1);
    cr_assert_eq(got.kinds[FINDING_DUPLICATE], 1);
    cr_assert_str_eq(got.file, "file_per_key_dir/a/a/copy");
    shell("rm %2$s/%1$s", A_FILE);
    got = read_files(200);
    cr_assert_eq(got.kinds[FINDING_MISPLACED], 1);
    cr_assert_eq(got.kinds[FINDING_DUPLICATE], 0);
}

Test(foreign, strange_files_are_reported_and_left)
{
    copy_golden("file_per_key");
    shell(
        "touch %2$s/file_per_key_dir/a/notes && ln -s /etc/passwd %2$s/file_per_key_dir/a/a/l "
        "&& mkfifo %2$s/file_per_key_dir/b/a/f%1$s",
        "");
    cr_assert_eq(read_files(200).kinds[FINDING_UNKNOWN], 3);
}

Test(foreign, a_layout_is_recognised_by_its_files)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    cr_assert_null(mcfs_backend_recognise(dir, NULL, &err));
    cr_assert_eq(err.code, MCFS_FILE_NOT_FOUND);
    copy_golden("bucket");
    cr_assert_eq(mcfs_backend_recognise(dir, NULL, &err), &mcfs_bucket_ops);
    shell("touch %2$s/" OFFSET_DATA "%1$s", "");
    cr_assert_null(mcfs_backend_recognise(dir, NULL, &err));
    cr_assert_eq(err.code, MCFS_INVALID_PARAMS);
}

/* ---- only looked at ---- */

static void only_looks(const char *name)
{
    copy_golden(name);
    shell("find %2$s -printf '%%p %%s %%m %%T@ %%C@\\n' | sort > %2$s.before%1$s", "");
    shell("find %2$s -type f -exec sha256sum {} + | sort >> %2$s.before%1$s", "");
    struct mcfs_backend *b = open_recognised();
    struct mcfs_backend_put put = {.object = {.tenant = MCFS_SLICE_LITERAL("default"),
                                              .key = MCFS_SLICE_LITERAL("k"),
                                              .version = 9,
                                              .size = 1},
                                   .data = "x"};
    cr_assert_eq(b->ops->put(b, &put, 1), 1);
    cr_assert_eq(put.err.errnum, EROFS);
    cr_assert_eq(b->ops->close(b, NULL), 0);
    shell("find %2$s -printf '%%p %%s %%m %%T@ %%C@\\n' | sort > %2$s.after%1$s", "");
    shell("find %2$s -type f -exec sha256sum {} + | sort >> %2$s.after%1$s", "");
    shell("cmp %2$s.before %2$s.after%1$s && rm %2$s.before %2$s.after", "");
}

Test(foreign, an_offset_store_is_only_looked_at)
{
    only_looks("offset_crash");
}

Test(foreign, files_by_key_are_only_looked_at)
{
    only_looks("file_per_key");
}

Test(foreign, buckets_are_only_looked_at)
{
    only_looks("bucket");
}

Test(foreign, a_directory_that_is_being_written_can_be_read)
{
    struct mcfs_backend_config config = {.dir = dir, .flush_interval_ms = 3600000};
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct mcfs_backend *owner = mcfs_bucket_ops.open(&config, NULL, &err);
    cr_assert_not_null(owner, "%s", err.msg);
    struct mcfs_backend_put put = {.object = {.tenant = MCFS_SLICE_LITERAL("default"),
                                              .key = MCFS_SLICE_LITERAL("k"),
                                              .version = 9,
                                              .size = 5},
                                   .data = "hello"};
    cr_assert_eq(owner->ops->put(owner, &put, 1), 0);
    shell("touch %2$s/stranger && find %2$s | sort > %2$s.before%1$s", "");
    struct mcfs_backend *b = open_recognised();
    struct mcfs_backend_reader *r =
        b->ops->reader_open(b, MCFS_SLICE_LITERAL("default"), MCFS_SLICE_LITERAL("k"), 9, &err);
    char buf[8];
    cr_assert_not_null(r, "%s", err.msg);
    cr_assert_eq(b->ops->reader_read(r, buf, sizeof(buf), 0, &err), 5);
    cr_assert_arr_eq(buf, "hello", 5);
    b->ops->reader_close(r);
    b->ops->close(b, NULL);
    shell(
        "find %2$s | sort > %2$s.after && cmp %2$s.before %2$s.after && rm %2$s.before "
        "%2$s.after%1$s",
        "");
    cr_assert_eq(owner->ops->close(owner, &err), 0, "%s", err.msg);
}

Test(foreign, the_path_of_a_key_is_mooncakes)
{
    struct mcfs_buf path = MCFS_BUF_INIT;
    file_per_key_path(mcfs_slice("tenant-b\0a/b/c/../002.bin", 25), &path);
    cr_assert(mcfs_slice_eq(mcfs_slice(path.data, path.len),
                            MCFS_SLICE_LITERAL("e/m/tenant-b_a_b_c_.._002.bin")));
    mcfs_buf_free(&path);
}
