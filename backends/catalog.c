/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/catalog.h"

#include "backends/get.h"
#include "backends/storage_key.h"
#include "backends/value.h"
#include "common/cleanup.h"
#include "common/hash.h"

#include <fcntl.h>
#include <inttypes.h>
#include <sys/statvfs.h>

struct reader {
    struct mcfs_backend_reader base;
    struct catalog *catalog;
    struct catalog_entry *entry;
    int fd; /* owned unless it is the catalog's */
};

static struct mcfs_slice key_of(const struct catalog_entry *e)
{
    return mcfs_slice(e->key, e->key_len);
}

static uint64_t hash_entry(const void *e)
{
    struct mcfs_slice key = key_of(e);
    return mcfs_hash(key.data, key.len);
}

static bool eq_entry(const void *e, const void *key)
{
    return mcfs_slice_eq(key_of(e), *(const struct mcfs_slice *)key);
}

static struct catalog_entry *find_key(const struct catalog *c, struct mcfs_slice key)
{
    return mcfs_table_find(&c->table, mcfs_hash(key.data, key.len), eq_entry, &key);
}

struct catalog *catalog_new(const struct mcfs_backend_ops *ops, const char *dir,
                            const struct finding_sink *sink, struct mcfs_error *err)
{
    struct catalog *c = calloc(1, sizeof(*c));
    if (!c) {
        mcfs_fail_errno(err, ENOMEM, "%s", dir);
        return NULL;
    }
    c->base.ops = ops;
    c->fd = -1;
    c->table = (struct mcfs_table)MCFS_TABLE_INIT(hash_entry);
    c->sink = sink;
    c->dir = realpath(dir, NULL);
    c->dir_fd = c->dir ? open(c->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (c->dir_fd >= 0)
        return c;
    mcfs_fail_errno(err, errno, "%s", dir);
    catalog_free(c);
    return NULL;
}

void catalog_free(struct catalog *c)
{
    if (!c)
        return;
    for (size_t i = 0; i < c->count; i++)
        free(c->all[i]);
    free(c->all);
    mcfs_table_free(&c->table);
    if (c->fd >= 0)
        close(c->fd);
    if (c->dir_fd >= 0)
        close(c->dir_fd);
    free(c->dir);
    free(c);
}

/* ---- filling ---- */

/* One piece of memory: the entry, its key, its file's name. */
static struct catalog_entry *copy_entry(const struct catalog_entry *e, struct mcfs_slice key)
{
    size_t file = strlen(e->file) + 1;
    struct catalog_entry *copy = malloc(sizeof(*copy) + key.len + file);
    if (!copy)
        return NULL;
    char *text = (char *)(copy + 1);
    memcpy(copy, e, sizeof(*e));
    memcpy(text, key.data, key.len);
    memcpy(text + key.len, e->file, file);
    copy->key = text;
    copy->key_len = (uint32_t)key.len;
    copy->file = text + key.len;
    return copy;
}

static void report_loser(const struct catalog *c, const struct catalog_entry *e)
{
    finding_report(c->sink, &(struct finding){.kind = FINDING_DUPLICATE,
                                              .repair = e->whole_file || c->fd < 0 ? REPAIR_FILE
                                                                                   : REPAIR_RECORD,
                                              .file = e->file,
                                              .offset = e->record,
                                              .key = key_of(e),
                                              .what = "an older copy of an object that is stored "
                                                      "elsewhere too"});
}

static int append(struct catalog *c, struct catalog_entry *e)
{
    if (c->count == c->cap) {
        size_t cap = c->cap ? c->cap * 2 : 256;
        struct catalog_entry **all = realloc(c->all, cap * sizeof(struct catalog_entry *));
        if (!all)
            return -1;
        c->all = all;
        c->cap = cap;
    }
    if (mcfs_table_add(&c->table, e))
        return -1;
    e->at = c->count;
    c->all[c->count++] = e;
    return 0;
}

int catalog_add(struct catalog *c, const struct catalog_entry *e)
{
    _cleanup_buf_ struct mcfs_buf whole = MCFS_BUF_INIT;
    storage_key_complete(mcfs_slice(e->key, e->key_len), &whole);
    if (whole.failed)
        return -1;
    struct mcfs_slice key = mcfs_slice(whole.data, whole.len);
    if (!storage_key_is_valid(key)) {
        finding_report(c->sink, &(struct finding){.kind = FINDING_STALE,
                                                  .file = e->file,
                                                  .offset = e->record,
                                                  .key = key,
                                                  .what = "a key that no path can name"});
        return 0;
    }
    struct catalog_entry *copy = copy_entry(e, key), *other = find_key(c, key);
    if (!copy)
        return -1;
    if (!other) {
        c->object_bytes += e->size;
        c->index_bytes += sizeof(*copy) + key.len + strlen(e->file) + 1 + 3 * sizeof(void *);
        if (append(c, copy) == 0)
            return 0;
        free(copy);
        return -1;
    }
    bool newer = copy->version > other->version;
    report_loser(c, newer ? other : copy);
    if (!newer) {
        free(copy);
        return 0;
    }
    c->object_bytes += copy->size - other->size;
    copy->at = other->at;
    c->all[copy->at] = copy;
    mcfs_table_del(&c->table, other);
    free(other);
    return mcfs_table_add(&c->table, copy);
}

const struct catalog_entry *catalog_find(const struct catalog *c, struct mcfs_slice on_disk)
{
    _cleanup_buf_ struct mcfs_buf whole = MCFS_BUF_INIT;
    storage_key_complete(on_disk, &whole);
    return whole.failed ? NULL : find_key(c, mcfs_slice(whole.data, whole.len));
}

static int by_version(const void *a, const void *b)
{
    const struct catalog_entry *x = *(struct catalog_entry *const *)a,
                               *y = *(struct catalog_entry *const *)b;
    if (x->version != y->version)
        return x->version > y->version ? 1 : -1;
    return mcfs_slice_cmp(key_of(x), key_of(y));
}

void catalog_seal(struct catalog *c)
{
    c->sink = NULL;
    if (c->count)
        qsort(c->all, c->count, sizeof(struct catalog_entry *), by_version);
}

int catalog_check_read_only(const struct mcfs_backend_config *config, const char *layout,
                            struct mcfs_error *err)
{
    if (config->read_only)
        return 0;
    return mcfs_fail(err, MCFS_INVALID_PARAMS, "%s is read, not written: mount offload:%s instead",
                     layout, config->dir);
}

struct mcfs_backend *catalog_opened(struct catalog *c, uint64_t dropped,
                                    struct mcfs_backend_recovery *recovery)
{
    if (c && recovery)
        *recovery = (struct mcfs_backend_recovery){
            .objects = c->count, .bytes = c->object_bytes, .dropped_objects = dropped};
    return c ? &c->base : NULL;
}

bool catalog_forget(struct catalog *c, struct catalog_entry *e)
{
    if (atomic_exchange(&e->forgotten, true))
        return false;
    atomic_fetch_add(&c->forgotten, 1);
    atomic_fetch_add(&c->forgotten_bytes, e->size);
    return true;
}

/* ---- reading ---- */

struct catalog_entry *catalog_lookup(const struct catalog *c, struct mcfs_slice tenant,
                                     struct mcfs_slice key, uint64_t version,
                                     struct mcfs_error *err)
{
    _cleanup_buf_ struct mcfs_buf name = MCFS_BUF_INIT;
    if (storage_key(tenant, key, &name, err))
        return NULL;
    struct catalog_entry *e = find_key(c, mcfs_slice(name.data, name.len));
    if (e && e->version == version && !atomic_load_explicit(&e->forgotten, memory_order_relaxed))
        return e;
    storage_gone(key, err);
    return NULL;
}

struct mcfs_backend_reader *catalog_reader_open(struct mcfs_backend *b, struct mcfs_slice tenant,
                                                struct mcfs_slice key, uint64_t version,
                                                struct mcfs_error *err)
{
    struct catalog *c = (struct catalog *)b;
    struct catalog_entry *e = catalog_lookup(c, tenant, key, version, err);
    if (!e)
        return NULL;
    if (atomic_load(&e->leaving)) {
        storage_gone(key, err);
        return NULL;
    }
    if (atomic_load_explicit(&e->bad, memory_order_relaxed)) {
        mcfs_fail(err, MCFS_CHECKSUM_MISMATCH, "%s/%s: %.*s is damaged", c->dir, e->file,
                  (int)MCFS_MIN(key.len, 120), key.data);
        return NULL;
    }
    int fd = c->fd >= 0 ? c->fd : openat(c->dir_fd, e->file, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    struct reader *r = fd >= 0 ? malloc(sizeof(*r)) : NULL;
    if (!r) {
        int errnum = fd >= 0 ? ENOMEM : errno;
        if (fd >= 0 && fd != c->fd)
            close(fd);
        if (errnum == ENOENT)
            mcfs_fail(err, MCFS_REPLICA_IS_GONE, "%s/%s: it was removed", c->dir, e->file);
        else
            mcfs_fail_errno(err, errnum, "%s/%s", c->dir, e->file);
        return NULL;
    }
    *r = (struct reader){.base = {b->ops}, .catalog = c, .entry = e, .fd = fd};
    atomic_fetch_add_explicit(&c->reads, 1, memory_order_relaxed);
    return &r->base;
}

void catalog_reader_close(struct mcfs_backend_reader *base)
{
    struct reader *r = (struct reader *)base;
    if (r->fd != r->catalog->fd)
        close(r->fd);
    free(r);
}

int catalog_reader_fd(struct mcfs_backend_reader *base, uint64_t *offset, uint64_t *length)
{
    const struct reader *r = (const struct reader *)base;
    *offset = r->entry->offset;
    *length = r->entry->size;
    return -1;
}

static int failed(struct reader *r, struct mcfs_error *err)
{
    if (err && err->code == MCFS_CHECKSUM_MISMATCH)
        atomic_fetch_add(&r->catalog->checksum_errors, 1);
    return mcfs_error_prefix(err, "%s/%s", r->catalog->dir, r->entry->file);
}

static int check_still_there(const struct reader *r, struct mcfs_error *err)
{
    const struct catalog *c = r->catalog;
    if (!c->still_there || c->still_there(r->entry, r->fd))
        return 0;
    return mcfs_fail(err, MCFS_CHECKSUM_MISMATCH,
                     "offset %" PRIu64 ": the object was overwritten since it was found",
                     r->entry->offset);
}

int64_t catalog_reader_read(struct mcfs_backend_reader *base, void *buf, size_t len, uint64_t off,
                            struct mcfs_error *err)
{
    struct reader *r = (struct reader *)base;
    struct value_place v = {r->fd, r->entry->offset, r->entry->size};
    int64_t n = value_read(&v, buf, len, off, err);
    if (n > 0 && check_still_there(r, err))
        n = -1;
    return n < 0 ? failed(r, err) : n;
}

/* Where what was read has to be looked at again there is no descriptor to read a batch from. */
size_t catalog_get(struct mcfs_backend *b, struct mcfs_backend_get *items, size_t n)
{
    return backend_get(b, IO_PLAIN, items, n);
}

int catalog_reader_verify(struct mcfs_backend_reader *base, struct mcfs_error *err)
{
    struct reader *r = (struct reader *)base;
    struct catalog_entry *e = r->entry;
    struct value_place v = {r->fd, e->offset, e->size};
    struct mcfs_error problem = MCFS_ERROR_INIT;
    if ((!e->has_crc || value_verify(&v, e->crc32c, &problem) == 0) &&
        check_still_there(r, &problem) == 0)
        return 0;
    if (problem.code == MCFS_CHECKSUM_MISMATCH)
        atomic_store(&e->bad, true);
    failed(r, &problem);
    if (err)
        *err = problem;
    return -1;
}

int catalog_locate(struct mcfs_backend *b, struct mcfs_slice tenant, struct mcfs_slice key,
                   uint64_t version, struct mcfs_backend_place *place, struct mcfs_error *err)
{
    const struct catalog_entry *e = catalog_lookup((struct catalog *)b, tenant, key, version, err);
    if (!e)
        return -1;
    snprintf(place->file, sizeof(place->file), "%s", e->file);
    place->offset = e->offset;
    place->length = e->size;
    place->crc32c = e->crc32c;
    place->has_crc = e->has_crc;
    place->whole_file = e->whole_file;
    return 0;
}

int catalog_scan(struct mcfs_backend *b, mcfs_backend_scan_fn fn, void *arg, struct mcfs_error *err)
{
    const struct catalog *c = (const struct catalog *)b;
    (void)err;
    for (size_t i = 0; i < c->count; i++) {
        const struct catalog_entry *e = c->all[i];
        if (atomic_load_explicit(&e->forgotten, memory_order_relaxed))
            continue;
        struct mcfs_object o = {.version = e->version,
                                .size = e->size,
                                .attr = {MCFS_ATTR_DEFAULT_MODE, 0, 0, e->mtime_ns},
                                .crc32c = e->crc32c,
                                .has_crc = e->has_crc};
        storage_key_split(key_of(e), &o.tenant, &o.key);
        if (!fn(&o, arg))
            break;
    }
    return 0;
}

void catalog_stats(struct mcfs_backend *b, struct mcfs_backend_stats *out)
{
    struct catalog *c = (struct catalog *)b;
    struct statvfs v;
    *out = (struct mcfs_backend_stats){
        .objects = c->count - atomic_load(&c->forgotten),
        .object_bytes = c->object_bytes - atomic_load(&c->forgotten_bytes),
        .capacity_bytes = c->used_bytes,
        .used_bytes = c->used_bytes,
        .dead_bytes = c->used_bytes > c->object_bytes ? c->used_bytes - c->object_bytes : 0,
        .index_bytes = c->index_bytes,
        .reads = atomic_load(&c->reads),
        .checksum_errors = atomic_load(&c->checksum_errors),
        .io_engine = io_engine_name(IO_PLAIN)};
    if (fstatvfs(c->dir_fd, &v) == 0)
        out->capacity_bytes += (uint64_t)v.f_bavail * v.f_frsize;
}

/* ---- what a store that is only read refuses ---- */

static int refuse(const struct mcfs_backend *b, struct mcfs_error *err)
{
    return mcfs_fail_errno(err, EROFS, "%s", ((const struct catalog *)b)->dir);
}

size_t catalog_put(struct mcfs_backend *b, struct mcfs_backend_put *items, size_t n)
{
    for (size_t i = 0; i < n; i++)
        refuse(b, &items[i].err);
    return n;
}

size_t catalog_remove(struct mcfs_backend *b, struct mcfs_backend_name *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        refuse(b, &list[i].err);
    return n;
}

int catalog_rekey(struct mcfs_backend *b, struct mcfs_slice tenant, struct mcfs_slice from,
                  uint64_t from_version, struct mcfs_slice to, uint64_t to_version,
                  struct mcfs_error *err)
{
    (void)tenant, (void)from, (void)from_version, (void)to, (void)to_version;
    return refuse(b, err);
}

int catalog_set_attr(struct mcfs_backend *b, struct mcfs_slice tenant, struct mcfs_slice key,
                     uint64_t version, const struct mcfs_attr *attr, struct mcfs_error *err)
{
    (void)tenant, (void)key, (void)version, (void)attr;
    return refuse(b, err);
}

int catalog_sync(struct mcfs_backend *b, struct mcfs_error *err)
{
    (void)b, (void)err;
    return 0;
}

int catalog_close(struct mcfs_backend *b, struct mcfs_error *err)
{
    (void)err;
    catalog_free((struct catalog *)b);
    return 0;
}
