/* SPDX-License-Identifier: Apache-2.0 */
/* Reading: a reader holds its entry and the bucket's data file, so that neither goes while it
 * reads. */
#include "backends/bucket/bucket.h"

#include "common/cleanup.h"
#include "common/crc32c.h"
#include "common/file.h"

#include <inttypes.h>

#define VERIFY_CHUNK (1u << 20)

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
        if (!e) {
            mcfs_fail(err, MCFS_REPLICA_IS_GONE, "%.*s: this version is not stored here",
                      (int)MCFS_MIN(key.len, 160), key.data);
            free(r);
            return NULL;
        }
        MCFS_LOCK_SCOPE(&e->bucket->lock);
        if (bucket_hold_data(s, e->bucket, err)) {
            free(r);
            return NULL;
        }
        e->readers++;
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
        MCFS_LOCK_SCOPE(&e->bucket->lock);
        bucket_release_data(s, e->bucket);
        reclaim = --e->readers == 0 && e->dead;
    }
    if (reclaim)
        entry_reclaim(s, e);
    free(r);
}

int store_reader_fd(struct mcfs_backend_reader *base, uint64_t *offset, uint64_t *length)
{
    struct reader *r = (struct reader *)base;
    *offset = r->entry->offset;
    *length = r->entry->size;
    return r->entry->bucket->data_fd;
}

int64_t store_reader_read(struct mcfs_backend_reader *base, void *buf, size_t len, uint64_t off,
                          struct mcfs_error *err)
{
    struct reader *r = (struct reader *)base;
    const struct entry *e = r->entry;
    if (off >= e->size)
        return 0;
    size_t want = (size_t)MCFS_MIN(len, e->size - off);
    ssize_t n = mcfs_pread_full(e->bucket->data_fd, buf, want, e->offset + off);
    if (n < 0)
        return mcfs_fail_errno(err, errno, "bucket %" PRIu64, e->bucket->id);
    if ((size_t)n < want) {
        atomic_fetch_add(&r->store->checksum_errors, 1);
        return mcfs_fail(err, MCFS_CHECKSUM_MISMATCH,
                         "bucket %" PRIu64 ": the file ends inside an object", e->bucket->id);
    }
    return n;
}

int store_reader_verify(struct mcfs_backend_reader *base, struct mcfs_error *err)
{
    struct reader *r = (struct reader *)base;
    const struct entry *e = r->entry;
    if (!e->has_crc)
        return 0;
    _cleanup_free_ char *buf = malloc(VERIFY_CHUNK);
    uint32_t crc = 0;
    if (!buf)
        return mcfs_fail_errno(err, ENOMEM, "verify");
    for (uint64_t done = 0; done < e->size;) {
        int64_t n = store_reader_read(base, buf, VERIFY_CHUNK, done, err);
        if (n <= 0)
            return -1;
        crc = mcfs_crc32c(crc, buf, (size_t)n);
        done += (uint64_t)n;
    }
    if (crc == e->crc32c)
        return 0;
    atomic_fetch_add(&r->store->checksum_errors, 1);
    return mcfs_fail(err, MCFS_CHECKSUM_MISMATCH,
                     "bucket %" PRIu64 ", offset %" PRIu64 ": the object's checksum is wrong",
                     e->bucket->id, e->offset);
}
