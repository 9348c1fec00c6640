/* SPDX-License-Identifier: Apache-2.0 */
/* What happens to objects that are stored: removal, another name, other attributes. */
#include "backends/bucket/bucket.h"

#include "common/cleanup.h"

#include <inttypes.h>

#define OPEN_LOG_MAX (8u << 20) /* a log that is longer can be shortened only once it is sealed */

/* The caller holds the bucket's lock. */
static int append_record(struct store *s, struct bucket *b, const struct log_record *r,
                         struct mcfs_error *err)
{
    _cleanup_buf_ struct mcfs_buf record = MCFS_BUF_INIT;
    log_put_record(&record, r);
    if (record.failed)
        return mcfs_fail_errno(err, ENOMEM, "log of bucket %" PRIu64, b->id);
    if (bucket_append_log(s, b, record.data, record.len, err))
        return -1;
    b->meta_stale |= r->type == LOG_DELETE || r->type == LOG_REKEY;
    if (b->is_open && !b->sealing && b->log_end > OPEN_LOG_MAX && bucket_log_is_long(b))
        bucket_stop_writing(s, b);
    return 0;
}

int bucket_log_delete(struct store *s, struct entry *e, struct mcfs_error *err)
{
    struct log_record r = {.type = LOG_DELETE, .version = e->version, .key = entry_key(e)};
    return append_record(s, entry_bucket(e), &r, err);
}

void entry_reclaim(struct store *s, struct entry *e)
{
    struct bucket *b = entry_bucket(e);
    {
        MCFS_LOCK_SCOPE(&b->lock);
        bucket_unlink(b, e);
        if (b->objects == 0 && !b->is_open && !b->writers)
            bucket_remove_files(s, b);
        else
            bucket_mark_dirty(s, b, false, false);
    }
    entry_free(e);
}

static int remove_one(struct store *s, struct mcfs_backend_name *n, struct mcfs_error *err)
{
    _cleanup_buf_ struct mcfs_buf key = MCFS_BUF_INIT;
    if (s->config.read_only)
        return mcfs_fail_errno(err, EROFS, "%s", s->dir);
    if (storage_key(n->tenant, n->key, &key, err))
        return -1;
    struct mcfs_slice k = mcfs_slice(key.data, key.len);
    struct index_stripe *stripe = index_stripe(s, k);
    struct entry *e;
    bool reclaim;
    {
        MCFS_LOCK_SCOPE(&stripe->lock);
        e = index_find(stripe, k, n->version);
        if (!e)
            return 0;
        MCFS_LOCK_SCOPE(&entry_bucket(e)->lock);
        if (bucket_log_delete(s, e, err))
            return -1;
        index_del(s, stripe, e);
        entry_kill(s, e);
        reclaim = e->readers == 0;
    }
    atomic_fetch_add_explicit(&s->removes, 1, memory_order_relaxed);
    if (reclaim)
        entry_reclaim(s, e);
    return 0;
}

size_t store_remove(struct mcfs_backend *b, struct mcfs_backend_name *names, size_t n)
{
    struct store *s = (struct store *)b;
    size_t failed = 0;
    for (size_t i = 0; i < n; i++) {
        names[i].err = (struct mcfs_error)MCFS_ERROR_INIT;
        failed += remove_one(s, &names[i], &names[i].err) != 0;
    }
    return failed;
}

/* Both stripes' locks are held. */
static int rekey_locked(struct store *s, struct index_stripe *from_stripe,
                        struct index_stripe *to_stripe, struct log_record *r,
                        struct mcfs_error *err)
{
    struct entry *e = index_find(from_stripe, r->key, r->version);
    struct entry *there = index_find(to_stripe, r->new_key, r->new_version);
    if (!e || entry_is_leaving(e) || e == there)
        return there ? 0 : storage_gone(r->key, err);
    if (there)
        return mcfs_fail(err, MCFS_OBJECT_ALREADY_EXISTS, "%.*s: this version is stored already",
                         (int)MCFS_MIN(r->new_key.len, 160), r->new_key.data);
    struct mcfs_attr attr = entry_attr(e);
    struct entry_room room;
    if (entry_make_room(e, &attr, r->new_key.len, &room))
        return mcfs_fail_errno(err, ENOMEM, "index");
    struct bucket *b = entry_bucket(e);
    MCFS_LOCK_SCOPE(&b->lock);
    if (append_record(s, b, r, err)) {
        entry_room_free(&room);
        return -1;
    }
    index_del(s, from_stripe, e);
    /* The bytes of the old name stay in front of the value; nobody reads them. */
    uint64_t old_len = entry_disk_key(e).len;
    if (e->key_inline && old_len != r->new_key.len) {
        b->live_bytes -= old_len;
        atomic_fetch_sub(&s->live_bytes, old_len);
        e->key_inline = false;
    }
    e->bare = false;
    entry_change(e, &attr, r->new_key, &room);
    e->version = r->new_version;
    if (index_add(s, to_stripe, e) == 0)
        return 0;
    /* Out of memory in the middle: the log has the truth, and the next start finds it. */
    return mcfs_fail_errno(err, ENOMEM, "index");
}

int store_rekey(struct mcfs_backend *b, struct mcfs_slice tenant, struct mcfs_slice from,
                uint64_t from_version, struct mcfs_slice to, uint64_t to_version,
                struct mcfs_error *err)
{
    struct store *s = (struct store *)b;
    _cleanup_buf_ struct mcfs_buf old = MCFS_BUF_INIT, new = MCFS_BUF_INIT;
    if (s->config.read_only)
        return mcfs_fail_errno(err, EROFS, "%s", s->dir);
    if (storage_key(tenant, from, &old, err) || storage_key(tenant, to, &new, err))
        return -1;
    struct log_record r = {.type = LOG_REKEY,
                           .version = from_version,
                           .new_version = to_version,
                           .key = mcfs_slice(old.data, old.len),
                           .new_key = mcfs_slice(new.data, new.len)};
    struct index_stripe *x = index_stripe(s, r.key), *y = index_stripe(s, r.new_key);
    mcfs_lock_two(&x->lock, &y->lock);
    int rc = rekey_locked(s, x, y, &r, err);
    mcfs_unlock_two(&x->lock, &y->lock);
    return rc;
}

int store_set_attr(struct mcfs_backend *b, struct mcfs_slice tenant, struct mcfs_slice key,
                   uint64_t version, const struct mcfs_attr *attr, struct mcfs_error *err)
{
    struct store *s = (struct store *)b;
    _cleanup_buf_ struct mcfs_buf name = MCFS_BUF_INIT;
    if (s->config.read_only)
        return mcfs_fail_errno(err, EROFS, "%s", s->dir);
    if (storage_key(tenant, key, &name, err))
        return -1;
    struct log_record r = {.type = LOG_ATTR,
                           .version = version,
                           .attr = *attr,
                           .key = mcfs_slice(name.data, name.len)};
    struct index_stripe *stripe = index_stripe(s, r.key);
    MCFS_LOCK_SCOPE(&stripe->lock);
    struct entry *e = index_find(stripe, r.key, version);
    if (!e)
        return storage_gone(key, err);
    struct entry_room room;
    if (entry_make_room(e, attr, r.key.len, &room))
        return mcfs_fail_errno(err, ENOMEM, "index");
    uint64_t before = entry_memory(e);
    MCFS_LOCK_SCOPE(&entry_bucket(e)->lock);
    if (append_record(s, entry_bucket(e), &r, err)) {
        entry_room_free(&room);
        return -1;
    }
    entry_change(e, attr, entry_key(e), &room);
    atomic_fetch_add(&s->index_bytes, entry_memory(e) - before);
    return 0;
}
