/* SPDX-License-Identifier: Apache-2.0 */
/* Reading: who has an entry open counts, and its range is not given out before he closes. */
#include "backends/offset/offset_store.h"

#include "backends/get.h"
#include "backends/offset/offset.h"
#include "backends/value.h"
#include "common/cleanup.h"

struct mcfs_backend_reader *offset_reader_open(struct mcfs_backend *b, struct mcfs_slice tenant,
                                               struct mcfs_slice key, uint64_t version,
                                               struct mcfs_error *err)
{
    struct offset_store *s = (struct offset_store *)b;
    _cleanup_buf_ struct mcfs_buf name = MCFS_BUF_INIT;
    if (storage_key(tenant, key, &name, err))
        return NULL;
    _cleanup_free_ struct offset_reader *r = malloc(sizeof(*r));
    if (!r) {
        mcfs_fail_errno(err, ENOMEM, "reader");
        return NULL;
    }
    struct mcfs_slice k = mcfs_slice(name.data, name.len);
    struct offset_stripe *stripe = offset_stripe(s, k);
    {
        MCFS_LOCK_SCOPE(&stripe->lock);
        struct offset_entry *e = offset_index_find(stripe, k, version);
        if (!e || e->evict.leaving) {
            storage_gone(key, err);
            return NULL;
        }
        if (atomic_load_explicit(&e->checked, memory_order_relaxed) == OFFSET_BAD) {
            mcfs_fail(err, MCFS_CHECKSUM_MISMATCH, "%s/" OFFSET_DATA ": %.*s is damaged", s->dir,
                      (int)MCFS_MIN(key.len, 120), key.data);
            return NULL;
        }
        *r = (struct offset_reader){.base = {&mcfs_offset_store_ops},
                                    .store = s,
                                    .entry = e,
                                    .offset = offset_entry_value(e),
                                    .size = e->size};
        atomic_fetch_add(&e->refs, 1);
        evict_order_used(&s->order, &stripe->line, &e->evict);
    }
    atomic_fetch_add_explicit(&s->reads, 1, memory_order_relaxed);
    return &MCFS_STEAL(r)->base;
}

void offset_reader_close(struct mcfs_backend_reader *base)
{
    struct offset_reader *r = (struct offset_reader *)base;
    /* From here on a release may free it. */
    atomic_fetch_sub(&r->entry->refs, 1);
    free(r);
}

int offset_reader_fd(struct mcfs_backend_reader *base, uint64_t *offset, uint64_t *length)
{
    struct offset_reader *r = (struct offset_reader *)base;
    *offset = r->offset;
    *length = r->size;
    return r->store->data_fd;
}

static int failed(struct offset_reader *r, struct mcfs_error *err)
{
    if (err && err->code == MCFS_CHECKSUM_MISMATCH)
        atomic_fetch_add(&r->store->checksum_errors, 1);
    return mcfs_error_prefix(err, "%s/" OFFSET_DATA, r->store->dir);
}

int64_t offset_reader_read(struct mcfs_backend_reader *base, void *buf, size_t len, uint64_t off,
                           struct mcfs_error *err)
{
    struct offset_reader *r = (struct offset_reader *)base;
    struct value_place v = {r->store->data_fd, r->offset, r->size};
    int64_t n = value_read(&v, buf, len, off, err);
    return n < 0 ? failed(r, err) : n;
}

int offset_reader_verify(struct mcfs_backend_reader *base, struct mcfs_error *err)
{
    struct offset_reader *r = (struct offset_reader *)base;
    struct offset_entry *e = r->entry;
    struct value_place v = {r->store->data_fd, r->offset, r->size};
    struct mcfs_error problem = MCFS_ERROR_INIT;
    if (e->has_crc && value_verify(&v, e->crc32c, &problem)) {
        if (problem.code == MCFS_CHECKSUM_MISMATCH)
            atomic_store(&e->checked, OFFSET_BAD);
        failed(r, &problem);
        if (err)
            *err = problem;
        return -1;
    }
    atomic_store(&e->checked, OFFSET_GOOD);
    return 0;
}

bool offset_reader_is_verified(const struct mcfs_backend_reader *base)
{
    const struct offset_reader *r = (const struct offset_reader *)base;
    return atomic_load_explicit(&r->entry->checked, memory_order_relaxed) == OFFSET_GOOD;
}

size_t offset_store_get(struct mcfs_backend *b, struct mcfs_backend_get *items, size_t n)
{
    return backend_get(b, ((struct offset_store *)b)->io, items, n);
}
