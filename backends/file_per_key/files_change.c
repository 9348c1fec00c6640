/* SPDX-License-Identifier: Apache-2.0 */
/* What happens to objects that are stored: removal, another name, other attributes. */
#include "backends/file_per_key/files.h"

#include "common/cleanup.h"

/* ---- removal ---- */

int file_kill(struct files *s, struct file_entry *e, struct mcfs_error *err)
{
    struct file_shard *h = &s->shards[e->shard];
    struct log_record r = {.type = LOG_DELETE, .version = e->version, .key = file_key(e)};
    {
        MCFS_LOCK_SCOPE(&h->lock);
        /* Room in the list first: what is recorded as removed must not be forgotten. */
        if (file_ids_add(&h->dead, e->id, e->size))
            return mcfs_fail_errno(err, ENOMEM, "index");
        if (file_log(s, e->shard, &r, err)) {
            h->dead.count--;
            return -1;
        }
        e->dead = true;
        file_unlink(h, e);
    }
    file_entry_drop(e);
    return 0;
}

static int remove_one(struct files *s, struct mcfs_backend_name *n, struct mcfs_error *err)
{
    _cleanup_buf_ struct mcfs_buf key = MCFS_BUF_INIT;
    if (s->config.read_only)
        return mcfs_fail_errno(err, EROFS, "%s", s->dir);
    if (storage_key(n->tenant, n->key, &key, err))
        return -1;
    struct mcfs_slice k = mcfs_slice(key.data, key.len);
    struct file_stripe *stripe = file_stripe(s, k);
    bool removed = false;
    {
        MCFS_LOCK_SCOPE(&stripe->lock);
        struct file_entry *e = file_find(&stripe->table, k, n->version);
        if (e) {
            file_entry_use(e);
            int rc = file_kill(s, e, err);
            if (rc == 0)
                file_index_del(s, stripe, e);
            file_entry_drop(e);
            if (rc)
                return -1;
            removed = true;
        }
    }
    if (mooncake_remove(s, n->tenant, n->key, n->version, err))
        return -1;
    if (removed)
        atomic_fetch_add_explicit(&s->removes, 1, memory_order_relaxed);
    return 0;
}

size_t files_remove(struct mcfs_backend *b, struct mcfs_backend_name *names, size_t n)
{
    struct files *s = (struct files *)b;
    size_t failed = 0;
    for (size_t i = 0; i < n; i++) {
        names[i].err = (struct mcfs_error)MCFS_ERROR_INIT;
        failed += remove_one(s, &names[i], &names[i].err) != 0;
    }
    return failed;
}

/* ---- another name ---- */

/* Both stripes' locks are held. */
static int rekey_locked(struct files *s, struct file_stripe *from, struct file_stripe *to,
                        struct log_record *r, struct mcfs_error *err)
{
    struct file_entry *e = file_find(&from->table, r->key, r->version);
    struct file_entry *there = file_find(&to->table, r->new_key, r->new_version);
    if (!e || e->evict.leaving || e == there)
        return there ? 0 : storage_gone(r->key, err);
    if (there)
        return mcfs_fail(err, MCFS_OBJECT_ALREADY_EXISTS, "%.*s: this version is stored already",
                         (int)MCFS_MIN(r->new_key.len, 160), r->new_key.data);
    char *key = malloc(r->new_key.len ? r->new_key.len : 1);
    if (!key)
        return mcfs_fail_errno(err, ENOMEM, "index");
    MCFS_LOCK_SCOPE(&s->shards[e->shard].lock);
    if (file_log(s, e->shard, r, err)) {
        free(key);
        return -1;
    }
    memcpy(key, r->new_key.data, r->new_key.len);
    file_index_del(s, from, e);
    free(e->key);
    e->key = key;
    e->key_len = (uint32_t)r->new_key.len;
    e->version = r->new_version;
    if (file_index_add(s, to, e) == 0)
        return 0;
    /* Out of memory in the middle: the log has the truth, and the next start finds it. */
    return mcfs_fail_errno(err, ENOMEM, "index");
}

int files_rekey(struct mcfs_backend *b, struct mcfs_slice tenant, struct mcfs_slice from,
                uint64_t from_version, struct mcfs_slice to, uint64_t to_version,
                struct mcfs_error *err)
{
    struct files *s = (struct files *)b;
    _cleanup_buf_ struct mcfs_buf old = MCFS_BUF_INIT, new = MCFS_BUF_INIT;
    if (s->config.read_only)
        return mcfs_fail_errno(err, EROFS, "%s", s->dir);
    if (storage_key(tenant, from, &old, err) || storage_key(tenant, to, &new, err))
        return -1;
    if (mooncake_has(s, tenant, to, to_version) &&
        !(mcfs_slice_eq(from, to) && from_version == to_version))
        return mcfs_fail(err, MCFS_OBJECT_ALREADY_EXISTS, "%.*s: this version is stored already",
                         (int)MCFS_MIN(to.len, 160), to.data);
    if (mooncake_adopt(s, tenant, from, from_version, err))
        return -1;
    struct log_record r = {.type = LOG_REKEY,
                           .version = from_version,
                           .new_version = to_version,
                           .key = mcfs_slice(old.data, old.len),
                           .new_key = mcfs_slice(new.data, new.len)};
    struct file_stripe *x = file_stripe(s, r.key), *y = file_stripe(s, r.new_key);
    mcfs_lock_two(&x->lock, &y->lock);
    int rc = rekey_locked(s, x, y, &r, err);
    mcfs_unlock_two(&x->lock, &y->lock);
    return rc;
}

/* ---- other attributes ---- */

int files_set_attr(struct mcfs_backend *b, struct mcfs_slice tenant, struct mcfs_slice key,
                   uint64_t version, const struct mcfs_attr *attr, struct mcfs_error *err)
{
    struct files *s = (struct files *)b;
    _cleanup_buf_ struct mcfs_buf name = MCFS_BUF_INIT;
    if (s->config.read_only)
        return mcfs_fail_errno(err, EROFS, "%s", s->dir);
    if (storage_key(tenant, key, &name, err) || mooncake_adopt(s, tenant, key, version, err))
        return -1;
    struct log_record r = {.type = LOG_ATTR,
                           .version = version,
                           .attr = *attr,
                           .key = mcfs_slice(name.data, name.len)};
    struct file_stripe *stripe = file_stripe(s, r.key);
    MCFS_LOCK_SCOPE(&stripe->lock);
    struct file_entry *e = file_find(&stripe->table, r.key, version);
    if (!e)
        return storage_gone(key, err);
    MCFS_LOCK_SCOPE(&s->shards[e->shard].lock);
    if (file_log(s, e->shard, &r, err))
        return -1;
    e->attr = *attr;
    return 0;
}
