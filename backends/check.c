/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/check.h"

#include "backends/backends.h"
#include "backends/file_per_key/file_per_key.h"
#include "backends/offset/offset.h"
#include "backends/offset/offset_image.h"
#include "backends/offset/offset_record.h"
#include "backends/storage_key.h"
#include "common/buf.h"
#include "common/cleanup.h"
#include "common/crc32c.h"
#include "common/file.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>

#define CHUNK (1u << 20)

/* ---- values ---- */

struct values {
    struct store_check *c;
    struct mcfs_backend *b;
    bool skip_checked;
    char *chunk;
    struct mcfs_error err;
};

static void report_value(struct values *v, const struct mcfs_object *o, const char *what)
{
    struct mcfs_backend_place place = {.file = ""};
    _cleanup_buf_ struct mcfs_buf key = MCFS_BUF_INIT;
    v->b->ops->locate(v->b, o->tenant, o->key, o->version, &place, NULL);
    storage_key(o->tenant, o->key, &key, NULL);
    finding_report(&v->c->sink,
                   &(struct finding){.kind = FINDING_CHECKSUM,
                                     .repair = o->has_crc ? REPAIR_OBJECT : REPAIR_NONE,
                                     .file = place.file,
                                     .offset = place.offset,
                                     .version = o->version,
                                     .key = mcfs_slice(key.data, key.len),
                                     .what = what});
}

static void read_value(struct values *v, struct mcfs_backend_reader *r, const struct mcfs_object *o)
{
    uint32_t crc = 0;
    int64_t n = 1;
    for (uint64_t at = 0; at < o->size && n > 0; at += (uint64_t)n) {
        struct mcfs_error err = MCFS_ERROR_INIT;
        n = v->b->ops->reader_read(r, v->chunk, CHUNK, at, &err);
        if (n <= 0) {
            report_value(v, o, err.msg[0] ? err.msg : "the object ends too early");
            return;
        }
        crc = mcfs_crc32c(crc, v->chunk, (size_t)n);
        v->c->read_bytes += (uint64_t)n;
        finding_read(&v->c->sink, (uint64_t)n);
    }
    if (o->has_crc && crc != o->crc32c)
        report_value(v, o, "the object's checksum is wrong");
}

static bool check_object(const struct mcfs_object *o, void *arg)
{
    struct values *v = arg;
    struct store_check *c = v->c;
    c->objects++;
    c->bytes += o->size;
    c->without_checksum += !o->has_crc;
    if (o->has_crc && v->skip_checked)
        c->read_bytes += o->size;
    if (o->has_crc ? v->skip_checked : !c->read_all)
        return true;
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct mcfs_backend_reader *r =
        v->b->ops->reader_open(v->b, o->tenant, o->key, o->version, &err);
    if (r) {
        read_value(v, r, o);
        v->b->ops->reader_close(r);
    } else if (err.code != MCFS_REPLICA_IS_GONE) {
        report_value(v, o, err.msg);
    }
    return true;
}

int check_values(struct store_check *c, struct mcfs_backend *b, bool skip_checked,
                 struct mcfs_error *err)
{
    struct values v = {.c = c, .b = b, .skip_checked = skip_checked, .chunk = malloc(CHUNK)};
    if (!v.chunk)
        return mcfs_fail_errno(err, ENOMEM, "%s", c->dir);
    int rc = b->ops->scan(b, check_object, &v, err);
    free(v.chunk);
    return rc;
}

/* ---- the two that are only read ---- */

/* Names in the directory itself that belong to nothing. */
static int check_names(struct store_check *c, const char *const *known, struct mcfs_error *err)
{
    _cleanup_dir_ DIR *dir = opendir(c->dir);
    struct dirent *d;
    if (!dir)
        return mcfs_fail_errno(err, errno, "%s", c->dir);
    while ((errno = 0, d = readdir(dir))) {
        bool is_known = strcmp(d->d_name, ".") == 0 || strcmp(d->d_name, "..") == 0 ||
                        strcmp(d->d_name, "lock") == 0 || strcmp(d->d_name, "lost+found") == 0;
        for (size_t i = 0; known[i]; i++)
            is_known |= strcmp(known[i], d->d_name) == 0;
        if (!is_known)
            finding_report(&c->sink, &(struct finding){.kind = FINDING_UNKNOWN,
                                                       .file = d->d_name,
                                                       .key = {"", 0},
                                                       .what = "it is not a file of this store"});
    }
    return errno ? mcfs_fail_errno(err, errno, "%s", c->dir) : 0;
}

static int check_catalog(struct store_check *c, struct catalog *catalog, const char *const *known,
                         bool values_read, struct mcfs_error *err)
{
    if (!catalog)
        return -1;
    int rc = check_values(c, &catalog->base, values_read, err);
    catalog_free(catalog);
    return rc ? rc : check_names(c, known, err);
}

static bool has_index(const char *dir)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/" OFFSET_INDEX, dir);
    return access(path, F_OK) == 0;
}

int store_check(struct store_check *c, struct mcfs_error *err)
{
    uint64_t dropped;
    c->objects = c->bytes = c->read_bytes = c->without_checksum = 0;
    if (c->layout == &mcfs_bucket_ops)
        return bucket_check(c, err);
    if (c->layout == &mcfs_offset_ops) {
        static const char unfinished[] = OFFSET_META ".tmp";
        const char *const known[] = {OFFSET_DATA,  OFFSET_META,    unfinished,
                                     OFFSET_INDEX, OFFSET_JOURNAL, NULL};
        struct catalog *catalog = offset_read(c->dir, true, NULL, &c->sink, &dropped, err);
        /* Mooncake's records are read when they are listed; of ours only the heads are. */
        return check_catalog(c, catalog, known, catalog && !has_index(c->dir), err);
    }
    return files_check(c, err);
}

/* ---- repair ---- */

/* Whether the head of a bad record is a part of a good one: then it stays. */
static bool is_inside_good(const struct catalog *good, uint64_t at)
{
    for (size_t i = 0; i < good->count; i++) {
        const struct catalog_entry *e = good->all[i];
        if (at < e->offset + e->size && e->record < at + OFFSET_RECORD_HEAD)
            return true;
    }
    return false;
}

/* A head of zeros is no record, for us and for Mooncake: it frees the place at its next start. */
static int wipe_records(const struct store_check *c, const struct finding *f, size_t n, bool *done,
                        struct mcfs_error *err)
{
    static const char zeros[OFFSET_RECORD_HEAD];
    uint64_t dropped;
    struct catalog *good = offset_read(c->dir, true, NULL, NULL, &dropped, err);
    _cleanup_fd_ int fd = good ? openat(good->dir_fd, OFFSET_DATA, O_WRONLY | O_CLOEXEC) : -1;
    int rc = fd >= 0 ? 0 : !good ? -1 : mcfs_fail_errno(err, errno, "%s/%s", c->dir, OFFSET_DATA);
    for (size_t i = 0; i < n && rc == 0; i++) {
        if (f[i].repair != REPAIR_RECORD || is_inside_good(good, f[i].offset))
            continue;
        if (mcfs_pwrite_full(fd, zeros, sizeof(zeros), f[i].offset))
            rc = mcfs_fail_errno(err, errno, "%s/%s", c->dir, OFFSET_DATA);
        else
            done[i] = true;
    }
    if (rc == 0 && fdatasync(fd))
        rc = mcfs_fail_errno(err, errno, "%s/%s", c->dir, OFFSET_DATA);
    catalog_free(good);
    return rc;
}

/* A directory that we wrote: what opening it sets right, and objects that are removed from it. */
static int repair_written(const struct store_check *c, const struct finding *f, size_t n,
                          bool *done, struct mcfs_error *err)
{
    struct stat st;
    char path[PATH_MAX];
    struct mcfs_backend_config config = {.dir = c->dir, .flush_interval_ms = UINT32_MAX};
    snprintf(path, sizeof(path), "%s/" OFFSET_DATA, c->dir);
    if (stat(path, &st) == 0)
        config.capacity_bytes = (uint64_t)st.st_size; /* as it was */
    struct mcfs_backend *b = mcfs_offset_ops.open(&config, NULL, err);
    if (!b)
        return -1;
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0; i++) {
        struct mcfs_backend_name name = {.version = f[i].version};
        if (f[i].repair == REPAIR_OBJECT) {
            storage_key_split(f[i].key, &name.tenant, &name.key);
            if (b->ops->remove(b, &name, 1)) {
                rc = -1;
                if (err)
                    *err = name.err;
            }
        }
        done[i] |= rc == 0 && (f[i].repair == REPAIR_OBJECT || f[i].repair == REPAIR_RECOVER);
    }
    return b->ops->close(b, rc ? NULL : err) ? -1 : rc;
}

/* The lock that opening a store needs is taken for the other part only. */
static int repair_offset(const struct store_check *c, const struct finding *f, size_t n, bool *done,
                         struct mcfs_error *err)
{
    bool records = false;
    for (size_t i = 0; i < n; i++)
        records |= f[i].repair == REPAIR_RECORD;
    if (records) {
        _cleanup_fd_ int lock = mcfs_own_dir(c->dir, err);
        if (lock < 0 || wipe_records(c, f, n, done, err))
            return -1;
    }
    return has_index(c->dir) ? repair_written(c, f, n, done, err) : 0;
}

static int remove_files(const struct store_check *c, const struct finding *f, size_t n, bool *done,
                        struct mcfs_error *err)
{
    _cleanup_fd_ int fd = open(c->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return mcfs_fail_errno(err, errno, "%s", c->dir);
    for (size_t i = 0; i < n; i++) {
        if (f[i].repair != REPAIR_FILE)
            continue;
        if (unlinkat(fd, f[i].file, 0) && errno != ENOENT)
            return mcfs_fail_errno(err, errno, "%s/%s", c->dir, f[i].file);
        done[i] = true;
    }
    return syncfs(fd) ? mcfs_fail_errno(err, errno, "%s", c->dir) : 0;
}

bool store_repair_opens(const struct store_check *c)
{
    return c->layout == &mcfs_bucket_ops || c->layout == &mcfs_offset_ops ||
           (c->layout == &mcfs_file_per_key_ops && files_are_ours(c->dir));
}

int store_repair(const struct store_check *c, const struct finding *findings, size_t n, bool *done,
                 struct mcfs_error *err)
{
    memset(done, 0, n * sizeof(*done));
    if (c->layout == &mcfs_bucket_ops)
        return bucket_repair(c, findings, n, done, err);
    if (c->layout == &mcfs_offset_ops)
        return repair_offset(c, findings, n, done, err);
    if (files_are_ours(c->dir))
        return files_repair(c, findings, n, done, err);
    return remove_files(c, findings, n, done, err);
}
