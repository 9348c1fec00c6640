/* SPDX-License-Identifier: Apache-2.0 */
/* (storage key, version) -> entry, in memory: 64 tables with a lock each. */
#include "backends/offset/offset_store.h"

#include "common/cleanup.h"
#include "common/hash.h"

struct name {
    struct mcfs_slice key;
    uint64_t version;
};

static uint64_t key_hash(struct mcfs_slice key)
{
    return mcfs_hash(key.data, key.len);
}

uint64_t offset_index_hash(const void *e)
{
    return key_hash(offset_entry_key(e));
}

struct offset_stripe *offset_stripe(struct offset_store *s, struct mcfs_slice key)
{
    return &s->stripes[key_hash(key) >> 58];
}

static bool entry_eq(const void *e, const void *name)
{
    const struct offset_entry *entry = e;
    const struct name *n = name;
    return entry->version == n->version && mcfs_slice_eq(offset_entry_key(entry), n->key);
}

struct offset_entry *offset_index_find(struct offset_stripe *stripe, struct mcfs_slice key,
                                       uint64_t version)
{
    struct name n = {key, version};
    return mcfs_table_find(&stripe->table, key_hash(key), entry_eq, &n);
}

static uint64_t entry_memory(const struct offset_entry *e)
{
    return sizeof(*e) + e->key_len + 2 * (sizeof(void *) + sizeof(uint32_t)); /* the slot */
}

int offset_index_add(struct offset_store *s, struct offset_entry *e)
{
    struct offset_stripe *stripe = offset_stripe(s, offset_entry_key(e));
    MCFS_LOCK_SCOPE(&stripe->lock);
    if (mcfs_table_add(&stripe->table, e))
        return -1;
    evict_order_add(&s->order, &stripe->line, &e->evict);
    atomic_fetch_add(&s->objects, 1);
    atomic_fetch_add(&s->object_bytes, e->size);
    atomic_fetch_add(&s->index_bytes, entry_memory(e));
    return 0;
}

void offset_index_del(struct offset_store *s, struct offset_entry *e)
{
    struct offset_stripe *stripe = offset_stripe(s, offset_entry_key(e));
    MCFS_LOCK_SCOPE(&stripe->lock);
    if (!mcfs_table_del(&stripe->table, e))
        return;
    evict_order_del(&s->order, &stripe->line, &e->evict);
    atomic_fetch_sub(&s->objects, 1);
    atomic_fetch_sub(&s->object_bytes, e->size);
    atomic_fetch_sub(&s->index_bytes, entry_memory(e));
}

void offset_index_kill(struct offset_store *s, struct offset_entry *e)
{
    offset_index_del(s, e);
    e->dead = true;
    e->gone_at = s->journal_end;
    e->waits = s->waiting;
    s->waiting = e;
}
