/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Eviction, the store's half: who goes next, and holding back what is about to go.  A victim stays
 * in the index, marked, until the master has answered: so that taking it back cannot fail.
 *
 * Each stripe of the index threads its entries in the order in which they go, so that choosing
 * costs what is chosen, however much is stored.  fifo goes by version, which is the order of puts
 * and survives a restart; lru by a count of puts and opens kept in memory, after a restart by
 * version until objects are opened again.  Versions of objects that Mooncake stored are all the
 * same, so a hash of the key tells those apart.
 */
#include "backends/bucket/bucket.h"

#include "common/cleanup.h"

/* ---- the order ---- */

static struct mcfs_backend_cursor place_of(const struct store *s, const struct entry *e)
{
    return (struct mcfs_backend_cursor){s->evict_lru ? e->used : e->version, e->version,
                                        index_hash(entry_key(e))};
}

static bool is_before(struct mcfs_backend_cursor a, struct mcfs_backend_cursor b)
{
    if (a.order != b.order)
        return a.order < b.order;
    return a.version != b.version ? a.version < b.version : a.tie < b.tie;
}

static void link_behind(struct index_stripe *stripe, struct entry *at, struct entry *e)
{
    e->older = at;
    e->newer = at ? at->newer : stripe->oldest;
    *(e->newer ? &e->newer->older : &stripe->newest) = e;
    *(at ? &at->newer : &stripe->oldest) = e;
}

static void count_use(struct store *s, struct entry *e)
{
    e->used = atomic_fetch_add_explicit(&s->use_clock, 1, memory_order_relaxed) + 1;
}

void order_add(struct store *s, struct index_stripe *stripe, struct entry *e)
{
    if (!s->evicts)
        return;
    struct entry *at = stripe->newest;
    if (s->ordered && s->evict_lru)
        count_use(s, e);
    /* Puts end nearly in the order of their versions, so this is a step or none. */
    if (s->ordered) {
        struct mcfs_backend_cursor place = place_of(s, e);
        while (at && is_before(place, place_of(s, at)))
            at = at->older;
    }
    link_behind(stripe, at, e);
}

void order_del(struct store *s, struct index_stripe *stripe, struct entry *e)
{
    if (!s->evicts)
        return;
    *(e->older ? &e->older->newer : &stripe->oldest) = e->newer;
    *(e->newer ? &e->newer->older : &stripe->newest) = e->older;
    e->older = e->newer = NULL;
}

void order_replace(struct store *s, struct index_stripe *stripe, struct entry *e, struct entry *n)
{
    if (!s->evicts)
        return;
    n->used = e->used;
    n->older = e->older;
    n->newer = e->newer;
    *(n->older ? &n->older->newer : &stripe->oldest) = n;
    *(n->newer ? &n->newer->older : &stripe->newest) = n;
    e->older = e->newer = NULL;
}

void order_used(struct store *s, struct index_stripe *stripe, struct entry *e)
{
    if (!s->evict_lru)
        return;
    count_use(s, e);
    if (e == stripe->newest)
        return;
    order_del(s, stripe, e);
    link_behind(stripe, stripe->newest, e);
}

static int by_place(const void *a, const void *b, void *arg)
{
    struct mcfs_backend_cursor x = place_of(arg, *(struct entry *const *)a),
                               y = place_of(arg, *(struct entry *const *)b);
    return is_before(x, y) ? -1 : is_before(y, x);
}

static int sort_stripe(struct store *s, struct index_stripe *stripe, struct mcfs_error *err)
{
    size_t n = 0, i = 0;
    MCFS_LOCK_SCOPE(&stripe->lock);
    for (struct entry *e = stripe->oldest; e; e = e->newer)
        n++;
    _cleanup_free_ struct entry **all = calloc(n ? n : 1, sizeof(struct entry *));
    if (!all)
        return mcfs_fail_errno(err, ENOMEM, "%s", s->dir);
    for (struct entry *e = stripe->oldest; e; e = e->newer)
        all[i++] = e;
    qsort_r(all, n, sizeof(struct entry *), by_place, s);
    stripe->oldest = stripe->newest = NULL;
    for (i = 0; i < n; i++)
        link_behind(stripe, stripe->newest, all[i]);
    return 0;
}

int order_begin(struct store *s, struct mcfs_error *err)
{
    for (size_t i = 0; s->evicts && i < INDEX_STRIPES; i++)
        if (sort_stripe(s, &s->stripes[i], err))
            return -1;
    s->ordered = true;
    return 0;
}

/* ---- choosing ---- */

struct candidate {
    struct mcfs_backend_cursor place;
    uint64_t size, bytes;
    char *key;
    uint32_t key_len;
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
    free(c->heap[0].key);
    c->heap[0] = c->heap[--c->count];
    sift_down(c);
}

static bool is_enough(const struct candidates *c)
{
    return c->count && (c->covered >= c->wanted || c->count == c->max);
}

static int take(struct candidates *c, const struct entry *e, struct mcfs_backend_cursor place)
{
    char *key = malloc(e->key_len ? e->key_len : 1);
    if (!key)
        return -1;
    memcpy(key, e->key, e->key_len);
    if (c->count == c->max)
        drop_youngest(c);
    c->heap[c->count++] = (struct candidate){place, e->size, entry_length(e), key, e->key_len};
    c->covered += entry_length(e);
    sift_up(c);
    while (c->count > 1 && c->covered - c->heap[0].bytes >= c->wanted)
        drop_youngest(c);
    return 0;
}

static int find_candidates(struct store *s, struct candidates *c, struct mcfs_backend_cursor after,
                           struct mcfs_error *err)
{
    for (size_t i = 0; i < INDEX_STRIPES; i++) {
        MCFS_LOCK_SCOPE(&s->stripes[i].lock);
        for (const struct entry *e = s->stripes[i].oldest; e; e = e->newer) {
            struct mcfs_backend_cursor place = place_of(s, e);
            if (is_enough(c) && !is_before(place, c->heap[0].place))
                break; /* and those behind it are younger still */
            if (!e->leaving && is_before(after, place) && take(c, e, place))
                return mcfs_fail_errno(err, ENOMEM, "victims of an eviction");
        }
    }
    return 0;
}

int64_t store_evict_choose(struct mcfs_backend *b, struct mcfs_backend_cursor *at, uint64_t bytes,
                           struct mcfs_backend_victim *out, size_t max, struct mcfs_error *err)
{
    struct store *s = (struct store *)b;
    if (!s->evicts || s->config.read_only)
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "%s: this store evicts nothing", s->dir);
    if (!max || !bytes)
        return 0;
    struct candidates c = {.heap = calloc(max, sizeof(*c.heap)), .max = max, .wanted = bytes};
    if (!c.heap)
        return mcfs_fail_errno(err, ENOMEM, "victims of an eviction");
    int rc = find_candidates(s, &c, *at, err);
    int64_t n = (int64_t)c.count;
    if (rc == 0 && n)
        *at = c.heap[0].place;
    while (c.count) { /* the youngest first, into the last place */
        struct candidate *x = &c.heap[0];
        if (rc == 0) {
            struct mcfs_backend_victim *v = &out[c.count - 1];
            *v = (struct mcfs_backend_victim){
                .version = x->place.version, .size = x->size, .memory = x->key};
            storage_key_split(mcfs_slice(x->key, x->key_len), &v->tenant, &v->key);
            x->key = NULL;
        }
        drop_youngest(&c);
    }
    free(c.heap);
    return rc ? -1 : n;
}

/* ---- holding back and letting go ---- */

static struct mcfs_slice victim_key(const struct mcfs_backend_victim *v)
{
    return mcfs_slice(v->memory, v->tenant.len + 1 + v->key.len);
}

/* Marks or unmarks a victim's entry; false when there is none to be. */
static bool mark(struct store *s, const struct mcfs_backend_victim *v, bool leaving)
{
    struct mcfs_slice key = victim_key(v);
    struct index_stripe *stripe = index_stripe(s, key);
    MCFS_LOCK_SCOPE(&stripe->lock);
    struct entry *e = index_find(stripe, key, v->version);
    if (!e || e->leaving == leaving)
        return false;
    e->leaving = leaving;
    return true;
}

size_t store_evict_hold(struct mcfs_backend *b, struct mcfs_backend_victim *victims, size_t n)
{
    size_t held = 0;
    for (size_t i = 0; i < n; i++) {
        victims[i].held = mark((struct store *)b, &victims[i], true);
        held += victims[i].held;
    }
    return held;
}

size_t store_evict_end(struct mcfs_backend *b, struct mcfs_backend_victim *victims, size_t n)
{
    struct store *s = (struct store *)b;
    size_t failed = 0;
    for (size_t i = 0; i < n; i++) {
        struct mcfs_backend_victim *v = &victims[i];
        struct mcfs_backend_name name = {v->tenant, v->key, v->version, MCFS_ERROR_INIT};
        if (v->held && !v->gone) {
            mark(s, v, false);
        } else if (v->held && store_remove(b, &name, 1)) {
            failed++; /* nobody's now: it stays held back, and the next inventory drops it */
        } else if (v->held) {
            atomic_fetch_add(&s->evictions, 1);
            atomic_fetch_add(&s->evicted_bytes, v->size);
        }
        v->err = name.err;
        free(v->memory);
        v->memory = NULL;
        v->tenant = v->key = mcfs_slice(NULL, 0);
    }
    return failed;
}
