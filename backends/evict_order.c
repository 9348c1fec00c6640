/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/evict_order.h"

#include "backends/storage_key.h"
#include "common/cleanup.h"
#include "common/hash.h"

#include <stdlib.h>
#include <string.h>

/* ---- the order ---- */

int evict_order_init(struct evict_order *o, const struct evict_store_ops *ops, void *store,
                     const char *policy, struct mcfs_error *err)
{
    bool none = !policy || strcmp(policy, "none") == 0;
    *o = (struct evict_order){.ops = ops, .store = store};
    o->lru = !none && strcmp(policy, "lru") == 0;
    o->active = o->lru || (!none && strcmp(policy, "fifo") == 0);
    if (none || o->active)
        return 0;
    return mcfs_fail(err, MCFS_INVALID_PARAMS, "eviction policy '%s' is not none, fifo or lru",
                     policy);
}

static struct mcfs_backend_cursor place_in(const struct evict_order *o, const struct evict_link *l,
                                           const struct evict_item *item)
{
    return (struct mcfs_backend_cursor){o->lru ? l->used : item->version, item->version,
                                        mcfs_hash(item->key.data, item->key.len)};
}

static struct mcfs_backend_cursor place_of(const struct evict_order *o, const struct evict_link *l)
{
    struct evict_item item = o->ops->item(l);
    return place_in(o, l, &item);
}

static bool is_before(struct mcfs_backend_cursor a, struct mcfs_backend_cursor b)
{
    if (a.order != b.order)
        return a.order < b.order;
    return a.version != b.version ? a.version < b.version : a.tie < b.tie;
}

static void link_behind(struct evict_line *line, struct evict_link *at, struct evict_link *l)
{
    l->older = at;
    l->newer = at ? at->newer : line->oldest;
    *(l->newer ? &l->newer->older : &line->newest) = l;
    *(at ? &at->newer : &line->oldest) = l;
}

static void count_use(struct evict_order *o, struct evict_link *l)
{
    l->used = atomic_fetch_add_explicit(&o->clock, 1, memory_order_relaxed) + 1;
}

void evict_order_add(struct evict_order *o, struct evict_line *line, struct evict_link *l)
{
    if (!o->active)
        return;
    struct evict_link *at = line->newest;
    if (o->sorted && o->lru)
        count_use(o, l);
    /* Puts end nearly in the order of their versions, so this is a step or none. */
    if (o->sorted) {
        struct mcfs_backend_cursor place = place_of(o, l);
        while (at && is_before(place, place_of(o, at)))
            at = at->older;
    }
    link_behind(line, at, l);
}

void evict_order_del(struct evict_order *o, struct evict_line *line, struct evict_link *l)
{
    if (!o->active)
        return;
    *(l->older ? &l->older->newer : &line->oldest) = l->newer;
    *(l->newer ? &l->newer->older : &line->newest) = l->older;
    l->older = l->newer = NULL;
}

void evict_order_replace(struct evict_order *o, struct evict_line *line, struct evict_link *l,
                         struct evict_link *n)
{
    if (!o->active)
        return;
    *n = *l;
    *(n->older ? &n->older->newer : &line->oldest) = n;
    *(n->newer ? &n->newer->older : &line->newest) = n;
    l->older = l->newer = NULL;
}

void evict_order_used(struct evict_order *o, struct evict_line *line, struct evict_link *l)
{
    if (!o->lru)
        return;
    count_use(o, l);
    if (l == line->newest)
        return;
    evict_order_del(o, line, l);
    link_behind(line, line->newest, l);
}

static int by_place(const void *a, const void *b, void *arg)
{
    struct mcfs_backend_cursor x = place_of(arg, *(struct evict_link *const *)a),
                               y = place_of(arg, *(struct evict_link *const *)b);
    return is_before(x, y) ? -1 : is_before(y, x);
}

static int sort_line(struct evict_order *o, unsigned stripe, struct mcfs_error *err)
{
    size_t n = 0, i = 0;
    pthread_mutex_t *lock;
    struct evict_line *line = o->ops->line(o->store, stripe, &lock);
    MCFS_LOCK_SCOPE(lock);
    for (struct evict_link *l = line->oldest; l; l = l->newer)
        n++;
    _cleanup_free_ struct evict_link **all = calloc(n ? n : 1, sizeof(struct evict_link *));
    if (!all)
        return mcfs_fail_errno(err, ENOMEM, "order of eviction");
    for (struct evict_link *l = line->oldest; l; l = l->newer)
        all[i++] = l;
    qsort_r(all, n, sizeof(struct evict_link *), by_place, o);
    line->oldest = line->newest = NULL;
    for (i = 0; i < n; i++)
        link_behind(line, line->newest, all[i]);
    return 0;
}

int evict_order_begin(struct evict_order *o, struct mcfs_error *err)
{
    for (unsigned i = 0; o->active && i < o->ops->stripes; i++)
        if (sort_line(o, i, err))
            return -1;
    o->sorted = true;
    return 0;
}

/* ---- choosing ---- */

int evict_victim_init(struct mcfs_backend_victim *v, struct mcfs_slice key, uint64_t version,
                      uint64_t size)
{
    char *copy = malloc(key.len ? key.len : 1);
    if (!copy)
        return -1;
    memcpy(copy, key.data, key.len);
    *v = (struct mcfs_backend_victim){.version = version, .size = size, .memory = copy};
    storage_key_split(mcfs_slice(copy, key.len), &v->tenant, &v->key);
    return 0;
}

struct candidate {
    struct mcfs_backend_cursor place;
    uint64_t bytes;
    struct mcfs_backend_victim victim;
};

/* The oldest ones found so far that cover what is wanted, as a heap with the youngest on top. */
struct candidates {
    struct candidate *heap;
    size_t count, max;
    uint64_t wanted, covered;
};

static void swap(struct candidate *a, struct candidate *b)
{
    struct candidate x = *a;
    *a = *b;
    *b = x;
}

static void sift_down(struct candidates *c)
{
    for (size_t i = 0, top = 0;; i = top) {
        for (size_t kid = 2 * i + 1; kid <= 2 * i + 2 && kid < c->count; kid++)
            if (is_before(c->heap[top].place, c->heap[kid].place))
                top = kid;
        if (top == i)
            return;
        swap(&c->heap[i], &c->heap[top]);
    }
}

static void sift_up(struct candidates *c)
{
    for (size_t i = c->count - 1; i && is_before(c->heap[(i - 1) / 2].place, c->heap[i].place);
         i = (i - 1) / 2)
        swap(&c->heap[i], &c->heap[(i - 1) / 2]);
}

static void drop_youngest(struct candidates *c)
{
    c->covered -= c->heap[0].bytes;
    free(c->heap[0].victim.memory);
    c->heap[0] = c->heap[--c->count];
    sift_down(c);
}

static bool is_enough(const struct candidates *c)
{
    return c->count && (c->covered >= c->wanted || c->count == c->max);
}

static int take(struct candidates *c, const struct evict_item *item,
                struct mcfs_backend_cursor place)
{
    struct candidate x = {.place = place, .bytes = item->bytes};
    if (evict_victim_init(&x.victim, item->key, item->version, item->size))
        return -1;
    if (c->count == c->max)
        drop_youngest(c);
    c->heap[c->count++] = x;
    c->covered += item->bytes;
    sift_up(c);
    while (c->count > 1 && c->covered - c->heap[0].bytes >= c->wanted)
        drop_youngest(c);
    return 0;
}

static int find_candidates(struct evict_order *o, struct candidates *c,
                           struct mcfs_backend_cursor after, struct mcfs_error *err)
{
    for (unsigned i = 0; i < o->ops->stripes; i++) {
        pthread_mutex_t *lock;
        struct evict_line *line = o->ops->line(o->store, i, &lock);
        MCFS_LOCK_SCOPE(lock);
        for (const struct evict_link *l = line->oldest; l; l = l->newer) {
            struct evict_item item = o->ops->item(l);
            struct mcfs_backend_cursor place = place_in(o, l, &item);
            if (is_enough(c) && !is_before(place, c->heap[0].place))
                break; /* and those behind it are younger still */
            if (!l->leaving && is_before(after, place) && take(c, &item, place))
                return mcfs_fail_errno(err, ENOMEM, "victims of an eviction");
        }
    }
    return 0;
}

/* The youngest comes off the heap first, and goes into the last place. */
static void hand_out(struct candidates *c, struct mcfs_backend_victim *out)
{
    while (c->count) {
        out[c->count - 1] = c->heap[0].victim;
        c->heap[0].victim.memory = NULL;
        drop_youngest(c);
    }
}

int64_t evict_order_choose(struct evict_order *o, const char *name, struct mcfs_backend_cursor *at,
                           uint64_t bytes, struct mcfs_backend_victim *out, size_t max,
                           struct mcfs_error *err)
{
    if (!o->active)
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "%s: this store evicts nothing", name);
    if (!max || !bytes)
        return 0;
    struct candidates c = {.heap = calloc(max, sizeof(*c.heap)), .max = max, .wanted = bytes};
    if (!c.heap)
        return mcfs_fail_errno(err, ENOMEM, "victims of an eviction");
    int64_t n = find_candidates(o, &c, *at, err) ? -1 : (int64_t)c.count;
    if (n > 0) {
        *at = c.heap[0].place;
        hand_out(&c, out);
    }
    while (c.count)
        drop_youngest(&c);
    free(c.heap);
    return n;
}

/* ---- holding back and letting go ---- */

struct mcfs_slice evict_victim_key(const struct mcfs_backend_victim *v)
{
    return mcfs_slice(v->memory, v->tenant.len + 1 + v->key.len);
}

/* Marks or unmarks a victim; false when there is nothing to be. */
static bool mark(struct evict_order *o, const struct mcfs_backend_victim *v, bool leaving)
{
    struct mcfs_slice key = evict_victim_key(v);
    unsigned stripe = o->ops->stripe_of(o->store, key);
    pthread_mutex_t *lock;
    o->ops->line(o->store, stripe, &lock);
    MCFS_LOCK_SCOPE(lock);
    struct evict_link *l = o->ops->find(o->store, stripe, key, v->version);
    if (!l || l->leaving == leaving)
        return false;
    l->leaving = leaving;
    return true;
}

size_t evict_order_hold(struct evict_order *o, struct mcfs_backend_victim *victims, size_t n)
{
    size_t held = 0;
    for (size_t i = 0; i < n; i++) {
        victims[i].held = mark(o, &victims[i], true);
        held += victims[i].held;
    }
    return held;
}

size_t evict_order_end(struct evict_order *o, struct mcfs_backend_victim *victims, size_t n)
{
    struct mcfs_backend *b = o->store;
    size_t failed = 0;
    for (size_t i = 0; i < n; i++) {
        struct mcfs_backend_victim *v = &victims[i];
        struct mcfs_backend_name name = {v->tenant, v->key, v->version, MCFS_ERROR_INIT};
        if (v->held && !v->gone) {
            mark(o, v, false);
        } else if (v->held && b->ops->remove(b, &name, 1)) {
            failed++; /* nobody's now: it stays held back, and the next inventory drops it */
        } else if (v->held) {
            atomic_fetch_add(&o->evictions, 1);
            atomic_fetch_add(&o->evicted_bytes, v->size);
        }
        v->err = name.err;
        free(v->memory);
        v->memory = NULL;
        v->tenant = v->key = mcfs_slice(NULL, 0);
    }
    return failed;
}
