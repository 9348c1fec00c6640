/* SPDX-License-Identifier: Apache-2.0 */
/* Reading: a reader has the file open, so that its bytes stay whatever happens to the name. */
#include "backends/file_per_key/files.h"

#include "backends/get.h"
#include "backends/value.h"
#include "common/cleanup.h"

#include <fcntl.h>

struct reader {
    struct mcfs_backend_reader base;
    struct files *store;
    struct file_entry *entry; /* NULL: one of Mooncake's */
    struct mcfs_backend_reader *mooncake;
    int fd;
};

/* *leaving: it is there, but held back by an eviction. */
static struct file_entry *hold(struct files *s, struct mcfs_slice key, uint64_t version,
                               bool *leaving)
{
    struct file_stripe *stripe = file_stripe(s, key);
    MCFS_LOCK_SCOPE(&stripe->lock);
    struct file_entry *e = file_find(&stripe->table, key, version);
    *leaving = e && e->evict.leaving;
    if (!e || *leaving)
        return NULL;
    file_entry_use(e);
    evict_order_used(&s->order, &stripe->line, &e->evict);
    return e;
}

static int open_file(struct files *s, struct file_entry *e, struct mcfs_slice key,
                     struct mcfs_error *err)
{
    char path[FILES_NAME];
    file_path(e->shard, e->id, path);
    if (atomic_load_explicit(&e->checked, memory_order_relaxed) == FILE_BAD)
        return mcfs_fail(err, MCFS_CHECKSUM_MISMATCH, "%s/" FILES_DIR "/%s: %.*s is damaged",
                         s->dir, path, (int)MCFS_MIN(key.len, 120), key.data);
    int fd = openat(s->own_fd, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd >= 0)
        return fd;
    if (errno != ENOENT)
        return mcfs_fail_errno(err, errno, "%s/" FILES_DIR "/%s", s->dir, path);
    bool removed = s->config.read_only;
    if (!removed) {
        MCFS_LOCK_SCOPE(&s->shards[e->shard].lock);
        removed = e->dead;
    }
    if (removed)
        return mcfs_fail(err, MCFS_REPLICA_IS_GONE, "%s/" FILES_DIR "/%s: it was removed", s->dir,
                         path);
    atomic_store(&e->checked, FILE_BAD);
    atomic_fetch_add(&s->checksum_errors, 1);
    return mcfs_fail(err, MCFS_CHECKSUM_MISMATCH, "%s/" FILES_DIR "/%s: the file is missing",
                     s->dir, path);
}

struct mcfs_backend_reader *files_reader_open(struct mcfs_backend *b, struct mcfs_slice tenant,
                                              struct mcfs_slice key, uint64_t version,
                                              struct mcfs_error *err)
{
    struct files *s = (struct files *)b;
    _cleanup_buf_ struct mcfs_buf name = MCFS_BUF_INIT;
    if (storage_key(tenant, key, &name, err))
        return NULL;
    struct reader *r = malloc(sizeof(*r));
    if (!r) {
        mcfs_fail_errno(err, ENOMEM, "reader");
        return NULL;
    }
    *r = (struct reader){.base = {b->ops}, .store = s, .fd = -1};
    bool leaving;
    r->entry = hold(s, mcfs_slice(name.data, name.len), version, &leaving);
    if (r->entry)
        r->fd = open_file(s, r->entry, key, err);
    else if (s->mooncake && !leaving)
        r->mooncake = catalog_reader_open(&s->mooncake->base, tenant, key, version, err);
    else
        storage_gone(key, err);
    if (r->fd < 0 && !r->mooncake) {
        file_entry_drop(r->entry);
        free(r);
        return NULL;
    }
    atomic_fetch_add_explicit(&s->reads, 1, memory_order_relaxed);
    return &r->base;
}

void files_reader_close(struct mcfs_backend_reader *base)
{
    struct reader *r = (struct reader *)base;
    if (r->mooncake)
        catalog_reader_close(r->mooncake);
    if (r->fd >= 0)
        close(r->fd);
    file_entry_drop(r->entry);
    free(r);
}

int files_reader_fd(struct mcfs_backend_reader *base, uint64_t *offset, uint64_t *length)
{
    struct reader *r = (struct reader *)base;
    if (r->mooncake)
        return catalog_reader_fd(r->mooncake, offset, length);
    *offset = 0;
    *length = r->entry->size;
    return r->fd;
}

static int failed(struct reader *r, struct mcfs_error *err)
{
    char path[FILES_NAME];
    file_path(r->entry->shard, r->entry->id, path);
    if (err && err->code == MCFS_CHECKSUM_MISMATCH)
        atomic_fetch_add(&r->store->checksum_errors, 1);
    return mcfs_error_prefix(err, "%s/" FILES_DIR "/%s", r->store->dir, path);
}

int64_t files_reader_read(struct mcfs_backend_reader *base, void *buf, size_t len, uint64_t off,
                          struct mcfs_error *err)
{
    struct reader *r = (struct reader *)base;
    if (r->mooncake)
        return catalog_reader_read(r->mooncake, buf, len, off, err);
    struct value_place v = {r->fd, 0, r->entry->size};
    int64_t n = value_read(&v, buf, len, off, err);
    return n < 0 ? failed(r, err) : n;
}

int files_reader_verify(struct mcfs_backend_reader *base, struct mcfs_error *err)
{
    struct reader *r = (struct reader *)base;
    if (r->mooncake)
        return catalog_reader_verify(r->mooncake, err);
    struct value_place v = {r->fd, 0, r->entry->size};
    struct mcfs_error problem = MCFS_ERROR_INIT;
    if (r->entry->has_crc && value_verify(&v, r->entry->crc32c, &problem)) {
        if (problem.code == MCFS_CHECKSUM_MISMATCH)
            atomic_store(&r->entry->checked, FILE_BAD);
        failed(r, &problem);
        if (err)
            *err = problem;
        return -1;
    }
    atomic_store(&r->entry->checked, FILE_GOOD);
    return 0;
}

bool files_reader_is_verified(const struct mcfs_backend_reader *base)
{
    const struct reader *r = (const struct reader *)base;
    /* Mooncake's files have no checksum: there is nothing to verify. */
    return r->mooncake ||
           atomic_load_explicit(&r->entry->checked, memory_order_relaxed) == FILE_GOOD;
}

size_t files_get(struct mcfs_backend *b, struct mcfs_backend_get *items, size_t n)
{
    return backend_get(b, ((struct files *)b)->io, items, n);
}

/* ---- every object ---- */

static int by_id(const void *a, const void *b)
{
    const struct file_entry *x = *(const struct file_entry *const *)a,
                            *y = *(const struct file_entry *const *)b;
    return (x->id > y->id) - (x->id < y->id);
}

struct list {
    struct file_entry **v;
    size_t count, cap;
};

static int take_shard(struct file_shard *h, struct list *l)
{
    MCFS_LOCK_SCOPE(&h->lock);
    for (struct file_entry *e = h->first; e; e = e->after) {
        if (l->count == l->cap) {
            size_t cap = l->cap ? l->cap * 2 : 256;
            struct file_entry **v = realloc(l->v, cap * sizeof(struct file_entry *));
            if (!v)
                return -1;
            l->v = v;
            l->cap = cap;
        }
        file_entry_use(e);
        l->v[l->count++] = e;
    }
    return 0;
}

/* A copy of what is said of an entry, its key in a buffer; false when it is gone. */
static bool copy_object(struct files *s, const struct file_entry *e, struct mcfs_buf *key,
                        struct mcfs_object *o)
{
    MCFS_LOCK_SCOPE(&s->shards[e->shard].lock);
    if (e->dead)
        return false;
    mcfs_buf_reset(key);
    mcfs_buf_append(key, e->key, e->key_len);
    *o = (struct mcfs_object){.version = e->version,
                              .size = e->size,
                              .attr = e->attr,
                              .crc32c = e->crc32c,
                              .has_crc = e->has_crc,
                              .data_type = e->data_type};
    return true;
}

/* In the order in which they were put.  No lock is held while fn runs: it may go over the network,
 * and what it learns there may lead back into the store. */
int files_scan(struct mcfs_backend *b, mcfs_backend_scan_fn fn, void *arg, struct mcfs_error *err)
{
    struct files *s = (struct files *)b;
    _cleanup_buf_ struct mcfs_buf key = MCFS_BUF_INIT;
    struct list l = {NULL, 0, 0};
    int rc = 0;
    bool more = true;
    for (unsigned i = 0; i < FILES_SHARDS && rc == 0; i++)
        if (take_shard(&s->shards[i], &l))
            rc = mcfs_fail_errno(err, ENOMEM, "scan");
    if (l.count)
        qsort(l.v, l.count, sizeof(struct file_entry *), by_id);
    for (size_t i = 0; i < l.count && rc == 0 && more; i++) {
        struct mcfs_object o;
        if (!copy_object(s, l.v[i], &key, &o))
            continue;
        if (key.failed)
            rc = mcfs_fail_errno(err, ENOMEM, "scan");
        else {
            storage_key_split(mcfs_slice(key.data, key.len), &o.tenant, &o.key);
            more = fn(&o, arg);
        }
    }
    for (size_t i = 0; i < l.count; i++)
        file_entry_drop(l.v[i]);
    free(l.v);
    return rc || !more || !s->mooncake ? rc : catalog_scan(&s->mooncake->base, fn, arg, err);
}
