/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Eviction, the store's half: who goes next, and holding back what is about to go.  A victim stays
 * in the index, marked, until the master has answered: so that taking it back cannot fail.
 */
#include "backends/bucket/bucket.h"

#include "common/cleanup.h"

struct candidate {
    struct mcfs_backend_cursor place;
    uint64_t size, bytes;
    char *key;
    uint32_t key_len;
};

/* The oldest ones found so far, as a heap with the youngest of them on top. */
struct candidates {
    struct candidate *heap;
    size_t count, cap;
};

static bool is_before(struct mcfs_backend_cursor a, struct mcfs_backend_cursor b)
{
    return a.order != b.order ? a.order < b.order : a.version < b.version;
}

static void sift_down(struct candidates *c, size_t i)
{
    for (;;) {
        size_t top = i;
        for (size_t kid = 2 * i + 1; kid <= 2 * i + 2 && kid < c->count; kid++)
            if (is_before(c->heap[top].place, c->heap[kid].place))
                top = kid;
        if (top == i)
            return;
        struct candidate x = c->heap[i];
        c->heap[i] = c->heap[top];
        c->heap[top] = x;
        i = top;
    }
}

static void sift_up(struct candidates *c, size_t i)
{
    for (; i && is_before(c->heap[(i - 1) / 2].place, c->heap[i].place); i = (i - 1) / 2) {
        struct candidate x = c->heap[i];
        c->heap[i] = c->heap[(i - 1) / 2];
        c->heap[(i - 1) / 2] = x;
    }
}

/* The caller holds the entry's stripe's lock. */
static int consider(struct store *s, struct candidates *c, const struct entry *e,
                    struct mcfs_backend_cursor after)
{
    struct mcfs_backend_cursor place = {s->evict_lru ? e->used : e->version, e->version};
    bool full = c->count == c->cap;
    if (e->leaving || !is_before(after, place) || (full && !is_before(place, c->heap[0].place)))
        return 0;
    char *key = malloc(e->key_len ? e->key_len : 1);
    if (!key)
        return -1;
    memcpy(key, e->key, e->key_len);
    struct candidate found = {place, e->size, entry_length(e), key, e->key_len};
    if (full) {
        free(c->heap[0].key);
        c->heap[0] = found;
        sift_down(c, 0);
    } else {
        c->heap[c->count++] = found;
        sift_up(c, c->count - 1);
    }
    return 0;
}

static int by_place(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    return is_before(x->place, y->place) ? -1 : is_before(y->place, x->place);
}

/* Marks an entry; false when it went meanwhile. */
static bool hold_back(struct store *s, const struct candidate *c)
{
    struct mcfs_slice key = mcfs_slice(c->key, c->key_len);
    struct index_stripe *stripe = index_stripe(s, key);
    MCFS_LOCK_SCOPE(&stripe->lock);
    struct entry *e = index_find(stripe, key, c->place.version);
    if (!e || e->leaving)
        return false;
    e->leaving = true;
    return true;
}

static int find_candidates(struct store *s, struct candidates *c, struct mcfs_backend_cursor after,
                           struct mcfs_error *err)
{
    for (size_t i = 0; i < INDEX_STRIPES; i++) {
        MCFS_LOCK_SCOPE(&s->stripes[i].lock);
        const struct entry *e;
        for (size_t at = 0; (e = mcfs_table_next(&s->stripes[i].table, &at));)
            if (consider(s, c, e, after))
                return mcfs_fail_errno(err, ENOMEM, "victims of an eviction");
    }
    return 0;
}

int64_t store_evict_begin(struct mcfs_backend *b, struct mcfs_backend_cursor *at, uint64_t bytes,
                          struct mcfs_backend_victim *out, size_t max, struct mcfs_error *err)
{
    struct store *s = (struct store *)b;
    if (!s->evicts || s->config.read_only)
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "%s: this store evicts nothing", s->dir);
    struct candidates c = {calloc(max ? max : 1, sizeof(*c.heap)), 0, max};
    int64_t n = 0;
    if (!c.heap)
        return mcfs_fail_errno(err, ENOMEM, "victims of an eviction");
    int rc = max ? find_candidates(s, &c, *at, err) : 0;
    qsort(c.heap, c.count, sizeof(*c.heap), by_place);
    uint64_t covered = 0;
    for (size_t i = 0; i < c.count; i++) {
        struct candidate *x = &c.heap[i];
        if (rc || covered >= bytes || !hold_back(s, x)) {
            free(x->key);
            continue;
        }
        *at = x->place;
        covered += x->bytes;
        struct mcfs_backend_victim *v = &out[n++];
        *v = (struct mcfs_backend_victim){
            .version = x->place.version, .size = x->size, .memory = x->key};
        storage_key_split(mcfs_slice(x->key, x->key_len), &v->tenant, &v->key);
    }
    free(c.heap);
    return rc ? -1 : n;
}

static void take_back(struct store *s, const struct mcfs_backend_victim *v)
{
    struct mcfs_slice key = mcfs_slice(v->memory, v->tenant.len + 1 + v->key.len);
    struct index_stripe *stripe = index_stripe(s, key);
    MCFS_LOCK_SCOPE(&stripe->lock);
    struct entry *e = index_find(stripe, key, v->version);
    if (e)
        e->leaving = false;
}

size_t store_evict_end(struct mcfs_backend *b, struct mcfs_backend_victim *victims, size_t n)
{
    struct store *s = (struct store *)b;
    size_t failed = 0;
    for (size_t i = 0; i < n; i++) {
        struct mcfs_backend_victim *v = &victims[i];
        struct mcfs_backend_name name = {v->tenant, v->key, v->version, MCFS_ERROR_INIT};
        if (!v->gone)
            take_back(s, v);
        else if (store_remove(b, &name, 1))
            failed++; /* nobody's now: it stays held back, and the next inventory drops it */
        else
            atomic_fetch_add(&s->evictions, 1);
        v->err = name.err;
        free(v->memory);
        v->memory = NULL;
        v->tenant = v->key = mcfs_slice(NULL, 0);
    }
    return failed;
}
