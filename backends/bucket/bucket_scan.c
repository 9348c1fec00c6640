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

static bool visit(const struct entry *e, mcfs_backend_scan_fn fn, void *arg)
{
    const char *nul = memchr(e->key, 0, e->key_len); /* there is one in every indexed key */
    size_t tenant_len = (size_t)(nul - e->key);
    struct mcfs_object o = {.tenant = mcfs_slice(e->key, tenant_len),
                            .key = mcfs_slice(nul + 1, e->key_len - tenant_len - 1),
                            .version = e->version,
                            .size = e->size,
                            .attr = e->attr,
                            .crc32c = e->crc32c,
                            .has_crc = e->has_crc,
                            .data_type = e->data_type};
    return fn(&o, arg);
}

static int by_offset(const void *a, const void *b)
{
    const struct entry *x = *(const struct entry *const *)a, *y = *(const struct entry *const *)b;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

/* Entries lie in a bucket in the order in which they were put.  1 to go on, 0 not to, -1 on error.
 */
static int visit_bucket(struct bucket *b, mcfs_backend_scan_fn fn, void *arg,
                        struct mcfs_error *err)
{
    MCFS_LOCK_SCOPE(&b->lock);
    size_t n = 0;
    _cleanup_free_ const struct entry **list =
        malloc((b->objects ? b->objects : 1) * sizeof(const struct entry *));
    if (!list)
        return mcfs_fail_errno(err, ENOMEM, "scan");
    for (const struct entry *e = b->entries; e; e = e->after)
        if (!e->dead)
            list[n++] = e;
    qsort(list, n, sizeof(const struct entry *), by_offset);
    for (size_t i = 0; i < n; i++)
        if (!visit(list[i], fn, arg))
            return 0;
    return 1;
}

int store_scan(struct mcfs_backend *base, mcfs_backend_scan_fn fn, void *arg,
               struct mcfs_error *err)
{
    struct store *s = (struct store *)base;
    size_t n;
    struct bucket **list = take_buckets(s, &n, err);
    if (!list)
        return -1;
    int more = 1;
    for (size_t i = 0; i < n; i++) {
        if (more > 0)
            more = visit_bucket(list[i], fn, arg, err);
        MCFS_LOCK_SCOPE(&s->lock);
        list[i]->arrivals--;
    }
    free(list);
    return more < 0 ? -1 : 0;
}
