/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fsck of a bucket store.  Checking is a recovery that only looks, with its findings told instead
 * of logged, then what a recovery does not look at: every value, bytes that two objects share, and
 * the .meta of buckets that have a log.  Repairing is a recovery that writes, and then forgets for
 * good what it dropped.
 */
#include "backends/check.h"

#include "backends/bucket/bucket.h"
#include "backends/bucket/bucket_meta.h"
#include "common/cleanup.h"
#include "common/file.h"

#include <inttypes.h>
#include <limits.h>
#include <sys/stat.h>

bool store_report(const struct store *s, const struct finding *f)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    if (!s->sink)
        return false;
    MCFS_LOCK_SCOPE(&lock);
    finding_report(s->sink, f);
    return true;
}

/* ---- bytes that two objects share ---- */

static int by_start(const void *a, const void *b)
{
    const struct entry *x = *(const struct entry *const *)a, *y = *(const struct entry *const *)b;
    uint64_t p = entry_start(x), q = entry_start(y);
    return (p > q) - (p < q);
}

static int check_overlaps(const struct store *s, const struct bucket *b, struct mcfs_error *err)
{
    size_t n = 0;
    char file[64];
    uint64_t end = 0;
    _cleanup_free_ const struct entry **list =
        malloc((b->objects ? b->objects : 1) * sizeof(const struct entry *));
    if (!list)
        return mcfs_fail_errno(err, ENOMEM, "%s", s->dir);
    for (const struct entry *e = b->entries; e; e = entry_after(e))
        if (!e->dead)
            list[n++] = e;
    qsort(list, n, sizeof(const struct entry *), by_start);
    snprintf(file, sizeof(file), "%" PRIu64 ".bucket", b->id);
    for (size_t i = 0; i < n; i++) {
        if (entry_length(list[i]) && entry_start(list[i]) < end)
            store_report(s, &(struct finding){.kind = FINDING_OVERLAP,
                                              .file = file,
                                              .offset = entry_offset(list[i]),
                                              .key = entry_key(list[i]),
                                              .version = list[i]->version,
                                              .what = "an object that shares bytes with the one "
                                                      "before it"});
        end = MCFS_MAX(end, entry_start(list[i]) + entry_length(list[i]));
    }
    return 0;
}

/* ---- the key before a value ---- */

/* Mooncake's buckets have no checksums; that an object is preceded by its key is the only sign that
 * the index leads to the right bytes.  (A bucket with a log may have had objects renamed.) */
static int check_keys(struct store *s, struct bucket *b, struct mcfs_error *err)
{
    char file[64];
    _cleanup_free_ char *key = malloc(MCFS_TENANT_MAX + 1 + MCFS_KEY_MAX);
    if (!b->foreign)
        return 0;
    if (!key)
        return mcfs_fail_errno(err, ENOMEM, "%s", s->dir);
    snprintf(file, sizeof(file), "%" PRIu64 ".bucket", b->id);
    MCFS_LOCK_SCOPE(&b->lock);
    if (bucket_hold_data(s, b, err))
        return -1;
    for (const struct entry *e = b->entries; e; e = entry_after(e)) {
        struct mcfs_slice want = entry_disk_key(e);
        if (e->dead || !e->key_inline || want.len > MCFS_TENANT_MAX + 1 + MCFS_KEY_MAX)
            continue;
        ssize_t n = mcfs_pread_full(b->data_fd, key, want.len, entry_start(e));
        if (n != (ssize_t)want.len || memcmp(key, want.data, want.len) != 0)
            store_report(s, &(struct finding){.kind = FINDING_RECORD,
                                              .file = file,
                                              .offset = entry_offset(e),
                                              .key = entry_key(e),
                                              .version = e->version,
                                              .what = "the key before the object is another"});
    }
    bucket_release_data(b);
    return 0;
}

/* ---- the .meta of a bucket with a log ---- */

struct outside {
    uint64_t data_size, count;
};

static bool lies_inside(const struct meta_place *p, uint64_t data_size)
{
    uint64_t at;
    return !__builtin_add_overflow(p->offset, p->key_size, &at) && at <= data_size &&
           p->data_size <= data_size - at;
}

static void count_outside(struct mcfs_slice key, const struct meta_place *place, void *arg)
{
    struct outside *o = arg;
    (void)key;
    o->count += !lies_inside(place, o->data_size);
}

/* We do not read it, but Mooncake would. */
static int check_meta(const struct store *s, const struct bucket *b, struct mcfs_error *err)
{
    char path[PATH_MAX], file[64];
    _cleanup_free_ char *bytes = NULL;
    struct mcfs_error bad = MCFS_ERROR_INIT;
    struct outside o = {b->data_end, 0};
    uint64_t data_size;
    if (!b->has_meta || b->foreign)
        return 0;
    bucket_path(s, b->id, "meta", path, sizeof(path));
    snprintf(file, sizeof(file), "%" PRIu64 ".meta", b->id);
    ssize_t len = mcfs_read_file_alloc(path, META_MAX, &bytes, &bad);
    if (len < 0 && bad.errnum == ENOENT)
        return 0; /* its owner removed it just now */
    if (len < 0 && bad.errnum != EFBIG) {
        if (err)
            *err = bad;
        return -1;
    }
    bool broken =
        len <= 0 || meta_parse(bytes, (size_t)len, &data_size, count_outside, &o) < 0 || o.count;
    if (broken)
        store_report(s, &(struct finding){.kind = FINDING_INDEX,
                                          .repair = REPAIR_FILE,
                                          .file = file,
                                          .key = {"", 0},
                                          .what = "the bucket's .meta is corrupt (its log is "
                                                  "whole)"});
    return 0;
}

/* ---- check ---- */

int bucket_check(struct store_check *c, struct mcfs_error *err)
{
    struct mcfs_backend_config config = {.dir = c->dir, .read_only = true};
    struct mcfs_backend *b = store_open_checked(&config, &c->sink, NULL, err);
    if (!b)
        return -1;
    struct store *s = (struct store *)b;
    int rc = check_values(c, b, false, err);
    for (struct bucket *k = s->buckets; k && rc == 0; k = k->next)
        rc = check_overlaps(s, k, err) || check_keys(s, k, err) || check_meta(s, k, err) ? -1 : 0;
    b->ops->close(b, NULL);
    return rc;
}

/* ---- repair ---- */

struct rewrite {
    struct mcfs_buf keys, places;
    uint64_t data_size, kept;
};

static void keep_inside(struct mcfs_slice key, const struct meta_place *place, void *arg)
{
    struct rewrite *w = arg;
    if (!lies_inside(place, w->data_size))
        return;
    meta_put_key(&w->keys, key);
    meta_put_place(&w->places, place);
    w->kept++;
}

/* Mooncake's .meta without the entries that lie outside of the bucket's file. */
static int rewrite_meta(const char *dir, const char *file, struct mcfs_error *err)
{
    char path[PATH_MAX], data[PATH_MAX];
    _cleanup_free_ char *bytes = NULL;
    _cleanup_buf_ struct mcfs_buf out = MCFS_BUF_INIT;
    struct rewrite w = {0};
    struct stat st;
    uint64_t size;
    snprintf(path, sizeof(path), "%s/%s", dir, file);
    snprintf(data, sizeof(data), "%s/%.*s.bucket", dir, (int)strcspn(file, "."), file);
    ssize_t len = mcfs_read_file_alloc(path, META_MAX, &bytes, err);
    if (len < 0)
        return -1;
    if (stat(data, &st))
        return mcfs_fail_errno(err, errno, "%s", data);
    w.data_size = (uint64_t)st.st_size;
    int rc = 0;
    if (meta_parse(bytes, (size_t)len, &size, keep_inside, &w) < 0) {
        rc = mcfs_fail(err, MCFS_FILE_READ_FAIL, "%s: it changed meanwhile", path);
    } else if (w.kept) { /* else the whole bucket is set aside when it is opened */
        meta_put_size(&out, MCFS_MIN(size, w.data_size));
        mcfs_buf_append(&out, w.keys.data, w.keys.len);
        mcfs_buf_append(&out, w.places.data, w.places.len);
        rc = out.failed || w.keys.failed || w.places.failed
                 ? mcfs_fail_errno(err, ENOMEM, "%s", path)
                 : mcfs_write_file(path, out.data, out.len, 0644, true, err);
    }
    mcfs_buf_free(&w.keys);
    mcfs_buf_free(&w.places);
    return rc;
}

static int repair_files(const struct store_check *c, const struct finding *f, size_t n, bool *done,
                        struct mcfs_error *err)
{
    const char *last = "";
    _cleanup_fd_ int lock = mcfs_own_dir(c->dir, err);
    if (lock < 0)
        return -1;
    for (size_t i = 0; i < n; i++) {
        char path[PATH_MAX];
        if (f[i].repair == REPAIR_ENTRIES) {
            if (strcmp(last, f[i].file) != 0 && rewrite_meta(c->dir, f[i].file, err))
                return -1;
            last = f[i].file;
            done[i] = true;
        } else if (f[i].repair == REPAIR_FILE) {
            snprintf(path, sizeof(path), "%s/%s", c->dir, f[i].file);
            if (unlink(path) && errno != ENOENT)
                return mcfs_fail_errno(err, errno, "%s", path);
            done[i] = true;
        }
    }
    return 0;
}

static int remove_object(struct mcfs_backend *b, const struct finding *f, struct mcfs_error *err)
{
    struct mcfs_backend_name name = {.version = f->version};
    storage_key_split(f->key, &name.tenant, &name.key);
    if (b->ops->remove(b, &name, 1) == 0)
        return 0;
    if (err)
        *err = name.err;
    return -1;
}

/* Logs that name what recovery dropped, or hold what it stepped over (and has kept in lost+found),
 * are written anew without it. */
static int renew_logs(struct store *s, struct mcfs_error *err)
{
    for (struct bucket *b = s->buckets; b; b = b->next) {
        MCFS_LOCK_SCOPE(&b->lock);
        if (!b->keep_gaps || !b->has_log || b->removed)
            continue;
        if (bucket_rewrite_log(s, b, err))
            return -1;
        b->meta_stale = true;
        bucket_mark_dirty(s, b, false, true);
    }
    return 0;
}

int bucket_repair(const struct store_check *c, const struct finding *findings, size_t n, bool *done,
                  struct mcfs_error *err)
{
    struct mcfs_backend_config config = {.dir = c->dir, .flush_interval_ms = UINT32_MAX};
    if (repair_files(c, findings, n, done, err))
        return -1;
    struct mcfs_backend *b = mcfs_bucket_ops.open(&config, NULL, err);
    if (!b)
        return -1;
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0; i++) {
        if (findings[i].repair == REPAIR_OBJECT)
            rc = remove_object(b, &findings[i], err);
        done[i] |= rc == 0 &&
                   (findings[i].repair == REPAIR_OBJECT || findings[i].repair == REPAIR_RECOVER);
    }
    if (rc == 0)
        rc = renew_logs((struct store *)b, err);
    if (b->ops->close(b, rc ? NULL : err))
        rc = -1;
    return rc;
}
