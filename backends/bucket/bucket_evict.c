/* SPDX-License-Identifier: Apache-2.0 */
/* The bucket store's objects in the order in which they are evicted (evict_order.h). */
#include "backends/bucket/bucket.h"

static struct evict_item item_of(const struct evict_link *l)
{
    const struct entry *e = entry_of_link(l);
    return (struct evict_item){entry_key(e), e->version, entry_size(e), entry_length(e)};
}

static struct evict_line *line_of(void *store, unsigned i, pthread_mutex_t **lock)
{
    struct store *s = store;
    *lock = &s->stripes[i].lock;
    return &s->stripes[i].line;
}

static unsigned stripe_of(void *store, struct mcfs_slice key)
{
    struct store *s = store;
    return (unsigned)(index_stripe(s, key) - s->stripes);
}

static struct evict_link *find(void *store, unsigned i, struct mcfs_slice key, uint64_t version)
{
    struct store *s = store;
    struct entry *e = index_find(&s->stripes[i], key, version);
    return e ? entry_link(e) : NULL;
}

int store_init_order(struct store *s, const char *policy, struct mcfs_error *err)
{
    static const struct evict_store_ops ops = {INDEX_STRIPES, item_of, line_of, stripe_of, find};
    return evict_order_init(&s->order, &ops, s, policy, err);
}

int64_t store_evict_choose(struct mcfs_backend *b, struct mcfs_backend_cursor *at, uint64_t bytes,
                           struct mcfs_backend_victim *out, size_t max, struct mcfs_error *err)
{
    struct store *s = (struct store *)b;
    if (s->config.read_only)
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "%s: it is only read", s->dir);
    return evict_order_choose(&s->order, s->dir, at, bytes, out, max, err);
}

size_t store_evict_hold(struct mcfs_backend *b, struct mcfs_backend_victim *victims, size_t n)
{
    return evict_order_hold(&((struct store *)b)->order, victims, n);
}

size_t store_evict_end(struct mcfs_backend *b, struct mcfs_backend_victim *victims, size_t n)
{
    return evict_order_end(&((struct store *)b)->order, victims, n);
}
