/* SPDX-License-Identifier: Apache-2.0 */
/* (storage key, version) -> place, in memory: 64 tables with a lock each. */
#include "backends/bucket/bucket.h"

#include "common/hash.h"

struct name {
    struct mcfs_slice key;
    uint64_t version;
};

uint64_t index_hash(struct mcfs_slice key)
{
    return mcfs_hash(key.data, key.len);
}

uint64_t index_entry_hash(const void *e)
{
    return index_hash(entry_key(e));
}

struct index_stripe *index_stripe(struct store *s, struct mcfs_slice key)
{
    return &s->stripes[index_hash(key) >> 58];
}

static bool entry_eq(const void *e, const void *name)
{
    const struct entry *entry = e;
    const struct name *n = name;
    return entry->version == n->version && mcfs_slice_eq(entry_key(entry), n->key);
}

int storage_key(struct mcfs_slice tenant, struct mcfs_slice key, struct mcfs_buf *buf,
                struct mcfs_error *err)
{
    if (tenant.len > MCFS_TENANT_MAX || key.len > MCFS_KEY_MAX || tenant.len == 0)
        return mcfs_fail(err, MCFS_INVALID_KEY, "tenant or key is too long");
    mcfs_buf_append(buf, tenant.data, tenant.len);
    mcfs_buf_append(buf, "", 1);
    mcfs_buf_append(buf, key.data, key.len);
    return buf->failed ? mcfs_fail_errno(err, ENOMEM, "storage key") : 0;
}

struct entry *index_find(struct index_stripe *stripe, struct mcfs_slice key, uint64_t version)
{
    struct name n = {key, version};
    return mcfs_table_find(&stripe->table, index_hash(key), entry_eq, &n);
}

int index_add(struct store *s, struct index_stripe *stripe, struct entry *e)
{
    if (mcfs_table_add(&stripe->table, e))
        return -1;
    atomic_fetch_add(&s->objects, 1);
    atomic_fetch_add(&s->object_bytes, e->size);
    atomic_fetch_add(&s->index_bytes, sizeof(*e) + e->key_len + 2 * sizeof(void *));
    return 0;
}

void index_del(struct store *s, struct index_stripe *stripe, struct entry *e)
{
    if (!mcfs_table_del(&stripe->table, e))
        return;
    atomic_fetch_sub(&s->objects, 1);
    atomic_fetch_sub(&s->object_bytes, e->size);
    atomic_fetch_sub(&s->index_bytes, sizeof(*e) + e->key_len + 2 * sizeof(void *));
}

struct entry *entry_new(struct mcfs_slice key)
{
    struct entry *e = calloc(1, sizeof(*e));
    if (!e || !(e->key = malloc(key.len ? key.len : 1))) {
        free(e);
        return NULL;
    }
    memcpy(e->key, key.data, key.len);
    e->key_len = (uint32_t)key.len;
    return e;
}

void entry_free(struct entry *e)
{
    if (e)
        free(e->key);
    free(e);
}

void bucket_link(struct bucket *b, struct entry *e)
{
    e->before = NULL;
    e->after = b->entries;
    if (e->after)
        e->after->before = e;
    b->entries = e;
    b->objects++;
    b->live_bytes += e->size + (e->key_inline ? e->key_len : 0);
}
