/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Visiting every object, in the order in which they were put: a node that reports its inventory
 * thereby gives its master's listings that order, in which objects are likely to be looked up.
 */
#include "backends/bucket/bucket.h"

#include "common/cleanup.h"

static int by_id(const void *a, const void *b)
{
    uint64_t x = (*(struct bucket *const *)a)->id, y = (*(struct bucket *const *)b)->id;
    return (x > y) - (x < y);
}

/* All buckets there are, each kept from being freed by an announced arrival. */
static struct bucket **take_buckets(struct store *s, size_t *n, struct mcfs_error *err)
{
    MCFS_LOCK_SCOPE(&s->lock);
    *n = 0;
    for (struct bucket *b = s->buckets; b; b = b->next)
        ++*n;
    struct bucket **list = malloc((*n ? *n : 1) * sizeof(struct bucket *));
    if (!list) {
        mcfs_fail_errno(err, ENOMEM, "scan");
        return NULL;
    }
    *n = 0;
    for (struct bucket *b = s->buckets; b; b = b->next) {
        b->arrivals++;
        list[(*n)++] = b;
    }
    qsort(list, *n, sizeof(struct bucket *), by_id);
    return list;
}

static int by_offset(const void *a, const void *b)
{
    const struct entry *x = *(const struct entry *const *)a, *y = *(const struct entry *const *)b;
    return (entry_offset(x) > entry_offset(y)) - (entry_offset(x) < entry_offset(y));
}

/* A bucket's objects as they stand at one moment; their names lie in `names` one behind the other,
 * tenant, 0x00, key, and are pointed to once all are there. */
struct copies {
    struct mcfs_object *v;
    size_t count;
    struct mcfs_buf names;
};

static void copies_free(struct copies *c)
{
    free(c->v);
    mcfs_buf_free(&c->names);
}

static void copy(struct copies *c, const struct entry *e)
{
    struct mcfs_slice key = entry_key(e);
    const char *nul = memchr(key.data, 0, key.len); /* there is one in every indexed key */
    size_t tenant_len = (size_t)(nul - key.data);
    c->v[c->count++] = (struct mcfs_object){.tenant = {NULL, tenant_len},
                                            .key = {NULL, key.len - tenant_len - 1},
                                            .version = e->version,
                                            .size = entry_size(e),
                                            .attr = entry_attr(e),
                                            .crc32c = e->crc32c,
                                            .has_crc = e->has_crc,
                                            .data_type = e->data_type};
    mcfs_buf_append(&c->names, key.data, key.len);
}

static int take_copies(struct bucket *b, struct copies *c, struct mcfs_error *err)
{
    MCFS_LOCK_SCOPE(&b->lock);
    size_t room = b->objects ? b->objects : 1, n = 0;
    _cleanup_free_ const struct entry **list = malloc(room * sizeof(const struct entry *));
    c->v = malloc(room * sizeof(*c->v));
    if (!list || !c->v)
        return mcfs_fail_errno(err, ENOMEM, "scan");
    for (const struct entry *e = b->entries; e; e = entry_after(e))
        if (!e->dead)
            list[n++] = e;
    /* Entries lie in a bucket in the order in which they were put. */
    qsort(list, n, sizeof(const struct entry *), by_offset);
    for (size_t i = 0; i < n; i++)
        copy(c, list[i]);
    return c->names.failed ? mcfs_fail_errno(err, ENOMEM, "scan") : 0;
}

/* 1 to go on, 0 not to, -1 on error.  No lock is held while fn runs: it may go over the network,
 * and what it learns there may lead back into the store. */
static int visit_bucket(struct bucket *b, mcfs_backend_scan_fn fn, void *arg,
                        struct mcfs_error *err)
{
    _cleanup_(copies_free) struct copies c = {0};
    if (take_copies(b, &c, err))
        return -1;
    const char *at = (const char *)c.names.data;
    for (size_t i = 0; i < c.count; i++) {
        struct mcfs_object *o = &c.v[i];
        o->tenant.data = at;
        o->key.data = at + o->tenant.len + 1;
        at = o->key.data + o->key.len;
        if (!fn(o, arg))
            return 0;
    }
    return 1;
}

int store_scan(struct mcfs_backend *base, mcfs_backend_scan_fn fn, void *arg,
               struct mcfs_error *err)
{
    struct store *s = (struct store *)base;
    size_t n;
    /* An object that is moved from a bucket that was visited to another would be missed or seen
     * twice.  Buckets are listed under this lock, too: what a move opens is among them. */
    pthread_rwlock_rdlock(&s->scan_lock);
    struct bucket **list = take_buckets(s, &n, err);
    int more = list ? 1 : -1;
    for (size_t i = 0; list && i < n; i++) {
        if (more > 0)
            more = visit_bucket(list[i], fn, arg, err);
        MCFS_LOCK_SCOPE(&s->lock);
        list[i]->arrivals--;
    }
    pthread_rwlock_unlock(&s->scan_lock);
    free(list);
    return more < 0 ? -1 : 0;
}
