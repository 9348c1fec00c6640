/* SPDX-License-Identifier: Apache-2.0 */
/* The offset store's objects in the order in which they are evicted (evict_order.h). */
#include "backends/offset/offset_store.h"

#include "common/cleanup.h"

#include <stddef.h>

static struct evict_item item_of(const struct evict_link *l)
{
    const struct offset_entry *e =
        (const struct offset_entry *)((const char *)l - offsetof(struct offset_entry, evict));
    uint64_t room = (offset_entry_length(e) + OFFSET_BLOCK - 1) & ~(OFFSET_BLOCK - 1);
    return (struct evict_item){offset_entry_key(e), e->version, e->size, room};
}

static struct evict_line *line_of(void *store, unsigned i, pthread_mutex_t **lock)
{
    struct offset_store *s = store;
    *lock = &s->stripes[i].lock;
    return &s->stripes[i].line;
}

static unsigned stripe_of(void *store, struct mcfs_slice key)
{
    struct offset_store *s = store;
    return (unsigned)(offset_stripe(s, key) - s->stripes);
}

static struct evict_link *find(void *store, unsigned i, struct mcfs_slice key, uint64_t version)
{
    struct offset_store *s = store;
    struct offset_entry *e = offset_index_find(&s->stripes[i], key, version);
    return e ? &e->evict : NULL;
}

int offset_init_order(struct offset_store *s, const char *policy, struct mcfs_error *err)
{
    static const struct evict_store_ops ops = {OFFSET_STRIPES, item_of, line_of, stripe_of, find};
    return evict_order_init(&s->order, &ops, s, policy, err);
}

int64_t offset_evict_choose(struct mcfs_backend *b, struct mcfs_backend_cursor *at, uint64_t bytes,
                            struct mcfs_backend_victim *out, size_t max, struct mcfs_error *err)
{
    struct offset_store *s = (struct offset_store *)b;
    return evict_order_choose(&s->order, s->dir, at, bytes, out, max, err);
}

size_t offset_evict_hold(struct mcfs_backend *b, struct mcfs_backend_victim *victims, size_t n)
{
    struct offset_store *s = (struct offset_store *)b;
    /* Names change under the store's lock. */
    MCFS_LOCK_SCOPE(&s->lock);
    return evict_order_hold(&s->order, victims, n);
}

size_t offset_evict_end(struct mcfs_backend *b, struct mcfs_backend_victim *victims, size_t n)
{
    return evict_order_end(&((struct offset_store *)b)->order, victims, n);
}
