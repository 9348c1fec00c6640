/* SPDX-License-Identifier: Apache-2.0 */
/* Reading: a reader holds its entry and the bucket's data file, so that neither goes while it
 * reads. */
#include "backends/bucket/bucket.h"

#include "backends/get.h"
#include "backends/value.h"
#include "common/cleanup.h"

#include <inttypes.h>

struct mcfs_backend_reader *store_reader_open(struct mcfs_backend *b, struct mcfs_slice tenant,
                                              struct mcfs_slice key, uint64_t version,
                                              struct mcfs_error *err)
{
    struct store *s = (struct store *)b;
    _cleanup_buf_ struct mcfs_buf name = MCFS_BUF_INIT;
    if (storage_key(tenant, key, &name, err))
        return NULL;
    struct reader *r = malloc(sizeof(*r));
    if (!r) {
        mcfs_fail_errno(err, ENOMEM, "reader");
        return NULL;
    }
    struct mcfs_slice k = mcfs_slice(name.data, name.len);
    struct index_stripe *stripe = index_stripe(s, k);
    {
        MCFS_LOCK_SCOPE(&stripe->lock);
        struct entry *e = index_find(stripe, k, version);
        *r = (struct reader){.base = {&mcfs_bucket_ops}, .store = s, .entry = e};
        if (!e || entry_is_leaving(e)) {
            storage_gone(key, err);
            free(r);
            return NULL;
        }
        MCFS_LOCK_SCOPE(&entry_bucket(e)->lock);
        bool bad = atomic_load_explicit(&e->checked, memory_order_relaxed) == BAD;
        if (bad)
            mcfs_fail(err, MCFS_CHECKSUM_MISMATCH, "%s/%" PRIu64 ".bucket: %.*s is damaged", s->dir,
                      entry_bucket(e)->id, (int)MCFS_MIN(key.len, 120), key.data);
        if (bad || bucket_hold_data(s, entry_bucket(e), err)) {
            free(r);
            return NULL;
        }
        e->readers++;
        evict_order_used(&s->order, &stripe->line, entry_link(e));
    }
    fd_cache_trim(s);
    atomic_fetch_add_explicit(&s->reads, 1, memory_order_relaxed);
    return &r->base;
}

void store_reader_close(struct mcfs_backend_reader *base)
{
    struct reader *r = (struct reader *)base;
    struct store *s = r->store;
    struct entry *e = r->entry;
    bool reclaim;
    {
        MCFS_LOCK_SCOPE(&entry_bucket(e)->lock);
        bucket_release_data(entry_bucket(e));
        reclaim = --e->readers == 0 && e->dead;
    }
    if (reclaim)
        entry_reclaim(s, e);
    free(r);
}

int store_reader_fd(struct mcfs_backend_reader *base, uint64_t *offset, uint64_t *length)
{
    struct reader *r = (struct reader *)base;
    *offset = entry_offset(r->entry);
    *length = entry_size(r->entry);
    return entry_bucket(r->entry)->data_fd;
}

static int failed(struct reader *r, struct mcfs_error *err)
{
    if (err && err->code == MCFS_CHECKSUM_MISMATCH)
        atomic_fetch_add(&r->store->checksum_errors, 1);
    return mcfs_error_prefix(err, "%s/%" PRIu64 ".bucket", r->store->dir,
                             entry_bucket(r->entry)->id);
}

int64_t store_reader_read(struct mcfs_backend_reader *base, void *buf, size_t len, uint64_t off,
                          struct mcfs_error *err)
{
    struct reader *r = (struct reader *)base;
    struct value_place v = {entry_bucket(r->entry)->data_fd, entry_offset(r->entry),
                            entry_size(r->entry)};
    int64_t n = value_read(&v, buf, len, off, err);
    return n < 0 ? failed(r, err) : n;
}

int store_reader_verify(struct mcfs_backend_reader *base, struct mcfs_error *err)
{
    struct reader *r = (struct reader *)base;
    const struct entry *e = r->entry;
    struct value_place v = {entry_bucket(e)->data_fd, entry_offset(e), entry_size(e)};
    struct mcfs_error problem = MCFS_ERROR_INIT;
    if (e->has_crc && value_verify(&v, e->crc32c, &problem)) {
        if (problem.code == MCFS_CHECKSUM_MISMATCH)
            atomic_store(&r->entry->checked, BAD);
        failed(r, &problem);
        if (err)
            *err = problem;
        return -1;
    }
    atomic_store(&r->entry->checked, GOOD);
    return 0;
}

bool store_reader_is_verified(const struct mcfs_backend_reader *base)
{
    const struct reader *r = (const struct reader *)base;
    return atomic_load_explicit(&r->entry->checked, memory_order_relaxed) == GOOD;
}

size_t store_get(struct mcfs_backend *b, struct mcfs_backend_get *items, size_t n)
{
    return backend_get(b, ((struct store *)b)->io, items, n);
}
