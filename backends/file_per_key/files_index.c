/* SPDX-License-Identifier: Apache-2.0 */
/* (storage key, version) -> file, in memory: 64 tables with a lock each. */
#include "backends/file_per_key/files.h"

#include "common/cleanup.h"
#include "common/hash.h"

struct name {
    struct mcfs_slice key;
    uint64_t version;
};

uint64_t file_entry_hash(const void *e)
{
    struct mcfs_slice key = file_key(e);
    return mcfs_hash(key.data, key.len);
}

struct file_stripe *file_stripe(struct files *s, struct mcfs_slice key)
{
    return &s->stripes[mcfs_hash(key.data, key.len) >> 58];
}

static bool entry_eq(const void *e, const void *name)
{
    const struct file_entry *entry = e;
    const struct name *n = name;
    return entry->version == n->version && mcfs_slice_eq(file_key(entry), n->key);
}

struct file_entry *file_find(const struct mcfs_table *t, struct mcfs_slice key, uint64_t version)
{
    struct name n = {key, version};
    return mcfs_table_find(t, mcfs_hash(key.data, key.len), entry_eq, &n);
}

static uint64_t memory_of(const struct file_entry *e)
{
    return sizeof(*e) + e->key_len + 4 * sizeof(void *); /* two allocations, slots of a table */
}

int file_index_add(struct files *s, struct file_stripe *stripe, struct file_entry *e)
{
    if (mcfs_table_add(&stripe->table, e))
        return -1;
    evict_order_add(&s->order, &stripe->line, &e->evict);
    atomic_fetch_add(&s->objects, 1);
    atomic_fetch_add(&s->object_bytes, e->size);
    atomic_fetch_add(&s->index_bytes, memory_of(e));
    return 0;
}

void file_index_del(struct files *s, struct file_stripe *stripe, struct file_entry *e)
{
    if (!mcfs_table_del(&stripe->table, e))
        return;
    evict_order_del(&s->order, &stripe->line, &e->evict);
    atomic_fetch_sub(&s->objects, 1);
    atomic_fetch_sub(&s->object_bytes, e->size);
    atomic_fetch_sub(&s->index_bytes, memory_of(e));
}

static bool is_pending(const struct file_stripe *stripe, const struct file_pending *p)
{
    for (const struct file_pending *q = stripe->pending; q; q = q->next)
        if (q->version == p->version && mcfs_slice_eq(q->key, p->key))
            return true;
    return false;
}

bool file_begin_put(struct file_stripe *stripe, struct file_pending *p)
{
    MCFS_LOCK_SCOPE(&stripe->lock);
    while (is_pending(stripe, p))
        pthread_cond_wait(&stripe->put_done, &stripe->lock);
    if (file_find(&stripe->table, p->key, p->version))
        return false;
    p->next = stripe->pending;
    stripe->pending = p;
    return true;
}

int file_end_put(struct files *s, struct file_stripe *stripe, struct file_pending *p,
                 struct file_entry *e)
{
    MCFS_LOCK_SCOPE(&stripe->lock);
    struct file_pending **at = &stripe->pending;
    while (*at != p)
        at = &(*at)->next;
    *at = p->next;
    pthread_cond_broadcast(&stripe->put_done);
    return e ? file_index_add(s, stripe, e) : 0;
}

struct file_entry *file_entry_new(struct mcfs_slice key)
{
    struct file_entry *e = calloc(1, sizeof(*e));
    if (!e || !(e->key = malloc(key.len ? key.len : 1))) {
        free(e);
        return NULL;
    }
    memcpy(e->key, key.data, key.len);
    e->key_len = (uint32_t)key.len;
    atomic_store_explicit(&e->users, 1, memory_order_relaxed);
    return e;
}

void file_entry_use(struct file_entry *e)
{
    atomic_fetch_add(&e->users, 1);
}

void file_entry_drop(struct file_entry *e)
{
    if (!e || atomic_fetch_sub(&e->users, 1) > 1)
        return;
    free(e->key);
    free(e);
}

void file_link(struct file_shard *h, struct file_entry *e)
{
    e->after = NULL;
    e->before = h->last;
    if (h->last)
        h->last->after = e;
    else
        h->first = e;
    h->last = e;
}

void file_unlink(struct file_shard *h, struct file_entry *e)
{
    if (e->before)
        e->before->after = e->after;
    else
        h->first = e->after;
    if (e->after)
        e->after->before = e->before;
    else
        h->last = e->before;
    e->before = e->after = NULL;
}

int file_ids_add(struct file_ids *l, uint64_t id, uint64_t size)
{
    if (l->count == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 64;
        struct file_id *v = realloc(l->v, cap * sizeof(*v));
        if (!v)
            return -1;
        l->v = v;
        l->cap = cap;
    }
    l->v[l->count++] = (struct file_id){id, size};
    return 0;
}
