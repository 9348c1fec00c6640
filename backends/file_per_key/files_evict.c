/* SPDX-License-Identifier: Apache-2.0 */
/* Objects in the order in which they are evicted: Mooncake's files, as they stand in their catalog,
 * then ours (evict_order.h). */
#include "backends/file_per_key/files.h"

#include <stddef.h>

static struct evict_item item_of(const struct evict_link *l)
{
    const struct file_entry *e =
        (const struct file_entry *)((const char *)l - offsetof(struct file_entry, evict));
    return (struct evict_item){file_key(e), e->version, e->size, e->size};
}

static struct evict_line *line_of(void *store, unsigned i, pthread_mutex_t **lock)
{
    struct files *s = store;
    *lock = &s->stripes[i].lock;
    return &s->stripes[i].line;
}

static unsigned stripe_of(void *store, struct mcfs_slice key)
{
    struct files *s = store;
    return (unsigned)(file_stripe(s, key) - s->stripes);
}

static struct evict_link *find(void *store, unsigned i, struct mcfs_slice key, uint64_t version)
{
    struct files *s = store;
    struct file_entry *e = file_find(&s->stripes[i].table, key, version);
    return e ? &e->evict : NULL;
}

int files_init_order(struct files *s, const char *policy, struct mcfs_error *err)
{
    static const struct evict_store_ops ops = {FILES_STRIPES, item_of, line_of, stripe_of, find};
    return evict_order_init(&s->order, &ops, s, policy, err);
}

/* ---- Mooncake's ---- */

/* A round begins with them: at->tie counts those that it has passed, while the rest of the cursor
 * is zero, which no place of ours is. */
static int64_t choose_mooncake(struct files *s, struct mcfs_backend_cursor *at, uint64_t bytes,
                               struct mcfs_backend_victim *out, size_t max, struct mcfs_error *err)
{
    uint64_t covered = 0;
    int64_t n = 0;
    if (!s->mooncake || at->order || at->version)
        return 0;
    for (; at->tie < s->mooncake->count && (size_t)n < max && covered < bytes; at->tie++) {
        const struct catalog_entry *e = s->mooncake->all[at->tie];
        if (atomic_load(&e->forgotten) || atomic_load(&e->leaving))
            continue;
        if (evict_victim_init(&out[n], mcfs_slice(e->key, e->key_len), e->version, e->size)) {
            evict_order_end(&s->order, out, (size_t)n);
            return mcfs_fail_errno(err, ENOMEM, "victims of an eviction");
        }
        covered += e->size;
        n++;
    }
    return n;
}

int64_t files_evict_choose(struct mcfs_backend *b, struct mcfs_backend_cursor *at, uint64_t bytes,
                           struct mcfs_backend_victim *out, size_t max, struct mcfs_error *err)
{
    struct files *s = (struct files *)b;
    if (s->config.read_only)
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "%s: it is only read", s->dir);
    int64_t n = s->order.active ? choose_mooncake(s, at, bytes, out, max, err) : 0;
    return n ? n : evict_order_choose(&s->order, s->dir, at, bytes, out, max, err);
}

size_t files_evict_hold(struct mcfs_backend *b, struct mcfs_backend_victim *victims, size_t n)
{
    struct files *s = (struct files *)b;
    size_t held = evict_order_hold(&s->order, victims, n);
    for (size_t i = 0; i < n; i++)
        if (!victims[i].held && mooncake_mark(s, &victims[i], true)) {
            victims[i].held = true;
            held++;
        }
    return held;
}

size_t files_evict_end(struct mcfs_backend *b, struct mcfs_backend_victim *victims, size_t n)
{
    struct files *s = (struct files *)b;
    for (size_t i = 0; i < n; i++)
        if (victims[i].held && !victims[i].gone)
            mooncake_mark(s, &victims[i], false);
    return evict_order_end(&s->order, victims, n);
}
