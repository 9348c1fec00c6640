/* SPDX-License-Identifier: Apache-2.0 */
/* (storage key, version) -> place, in memory: 64 tables with a lock each. */
#include "backends/bucket/bucket.h"

#include "common/cleanup.h"
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
    return &s->stripes[index_stripe_of(index_hash(key))];
}

static bool entry_eq(uint32_t number, const void *name)
{
    const struct entry *entry = entry_at(number);
    const struct name *n = name;
    return entry->version == n->version && mcfs_slice_eq(entry_key(entry), n->key);
}

struct entry *index_find_hashed(struct index_stripe *stripe, uint64_t hash, struct mcfs_slice key,
                                uint64_t version)
{
    struct name n = {key, version};
    return entry_at(mcfs_id_table_find(&stripe->table, hash, entry_eq, &n));
}

struct entry *index_find(struct index_stripe *stripe, struct mcfs_slice key, uint64_t version)
{
    return index_find_hashed(stripe, index_hash(key), key, version);
}

void index_reserve(struct store *s, struct index_stripe *stripe, size_t entries)
{
    MCFS_LOCK_SCOPE(&stripe->lock);
    size_t before = mcfs_id_table_bytes(&stripe->table);
    mcfs_id_table_reserve(&stripe->table, entries);
    atomic_fetch_add(&s->index_bytes, mcfs_id_table_bytes(&stripe->table) - before);
}

int index_enter(struct store *s, struct index_stripe *stripe, struct entry *e, uint64_t hash,
                struct index_counts *counts)
{
    size_t before = mcfs_id_table_bytes(&stripe->table);
    if (mcfs_id_table_add(&stripe->table, hash, entry_number(e)))
        return -1;
    evict_order_add(&s->order, &stripe->line, entry_link(e));
    counts->objects++;
    counts->object_bytes += entry_size(e);
    counts->index_bytes += entry_memory(e) + mcfs_id_table_bytes(&stripe->table) - before;
    return 0;
}

void index_count(struct store *s, const struct index_counts *counts)
{
    atomic_fetch_add(&s->objects, counts->objects);
    atomic_fetch_add(&s->object_bytes, counts->object_bytes);
    atomic_fetch_add(&s->index_bytes, counts->index_bytes);
}

int index_add(struct store *s, struct index_stripe *stripe, struct entry *e)
{
    struct index_counts one = {0};
    if (index_enter(s, stripe, e, index_entry_hash(e), &one))
        return -1;
    index_count(s, &one);
    return 0;
}

void index_del(struct store *s, struct index_stripe *stripe, struct entry *e)
{
    if (!mcfs_id_table_del(&stripe->table, index_entry_hash(e), entry_number(e)))
        return;
    evict_order_del(&s->order, &stripe->line, entry_link(e));
    atomic_fetch_sub(&s->objects, 1);
    atomic_fetch_sub(&s->object_bytes, entry_size(e));
    atomic_fetch_sub(&s->index_bytes, entry_memory(e));
}

void index_replace(struct store *s, struct index_stripe *stripe, struct entry *e, struct entry *n)
{
    mcfs_id_table_replace(&stripe->table, index_entry_hash(e), entry_number(e), entry_number(n));
    evict_order_replace(&s->order, &stripe->line, entry_link(e), entry_link(n));
    atomic_fetch_add(&s->index_bytes, entry_memory(n) - entry_memory(e));
}

static bool is_pending(const struct index_stripe *stripe, const struct pending_put *p)
{
    for (const struct pending_put *q = stripe->pending; q; q = q->next)
        if (q->version == p->version && mcfs_slice_eq(q->key, p->key))
            return true;
    return false;
}

enum begin_state index_begin_put(struct index_stripe *stripe, struct pending_put *p, bool wait)
{
    MCFS_LOCK_SCOPE(&stripe->lock);
    while (is_pending(stripe, p)) {
        if (!wait)
            return INDEX_BUSY;
        pthread_cond_wait(&stripe->put_done, &stripe->lock);
    }
    if (index_find(stripe, p->key, p->version))
        return INDEX_STORED;
    p->next = stripe->pending;
    stripe->pending = p;
    return INDEX_BEGUN;
}

int index_end_put(struct store *s, struct index_stripe *stripe, struct pending_put *p,
                  struct entry *e)
{
    MCFS_LOCK_SCOPE(&stripe->lock);
    struct pending_put **at = &stripe->pending;
    while (*at != p)
        at = &(*at)->next;
    *at = p->next;
    pthread_cond_broadcast(&stripe->put_done);
    return e ? index_add(s, stripe, e) : 0;
}

void bucket_link(struct store *s, struct bucket *b, struct entry *e)
{
    e->before = 0;
    e->after = entry_number(b->entries);
    if (b->entries)
        b->entries->before = entry_number(e);
    b->entries = e;
    b->objects++;
    b->live_bytes += entry_length(e);
    atomic_fetch_add(&s->live_bytes, entry_length(e));
}

void bucket_unlink(struct bucket *b, struct entry *e)
{
    struct entry *before = entry_at(e->before), *after = entry_after(e);
    if (before)
        before->after = e->after;
    else
        b->entries = after;
    if (after)
        after->before = e->before;
    b->objects--;
}

void entry_kill(struct store *s, struct entry *e)
{
    struct bucket *b = entry_bucket(e);
    e->dead = true;
    b->has_gaps = true;
    b->live_bytes -= MCFS_MIN(b->live_bytes, entry_length(e));
    atomic_fetch_sub(&s->live_bytes, entry_length(e));
    compact_consider(s, b);
}
