/* SPDX-License-Identifier: Apache-2.0 */
/* Visiting every object, in the order in which they were put. */
#include "backends/offset/offset_store.h"

#include "common/cleanup.h"

#define BATCH 512

/* Objects as they stand at one moment; their names lie in `names` one behind the other. */
struct copies {
    struct mcfs_object v[BATCH];
    size_t count;
    struct mcfs_buf names;
};

static void copy(struct copies *c, const struct offset_entry *e)
{
    struct mcfs_slice tenant, key;
    storage_key_split(offset_entry_key(e), &tenant, &key);
    c->v[c->count++] = (struct mcfs_object){.tenant = {NULL, tenant.len},
                                            .key = {NULL, key.len},
                                            .version = e->version,
                                            .size = e->size,
                                            .attr = e->attr,
                                            .crc32c = e->crc32c,
                                            .has_crc = e->has_crc,
                                            .data_type = e->data_type};
    mcfs_buf_append(&c->names, e->key, e->key_len);
}

/* Copies what comes from `at` on, or from the beginning; returns where to go on.  That entry is
 * held, so that it stays in the list even when its object goes; `at` is so no more. */
static struct offset_entry *take_copies(struct offset_store *s, struct offset_entry *at,
                                        struct copies *c)
{
    MCFS_LOCK_SCOPE(&s->lock);
    struct offset_entry *e = at ? at : s->all.first;
    c->count = 0;
    mcfs_buf_reset(&c->names);
    for (; e && c->count < BATCH; e = e->after)
        if (!e->dead)
            copy(c, e);
    if (e)
        atomic_fetch_add(&e->refs, 1);
    if (at)
        atomic_fetch_sub(&at->refs, 1);
    return e;
}

static bool visit(const struct copies *c, mcfs_backend_scan_fn fn, void *arg)
{
    const char *at = (const char *)c->names.data;
    for (size_t i = 0; i < c->count; i++) {
        struct mcfs_object o = c->v[i];
        o.tenant.data = at;
        o.key.data = at + o.tenant.len + 1;
        at = o.key.data + o.key.len;
        if (!fn(&o, arg))
            return false;
    }
    return true;
}

/* No lock is held while fn runs: it may go over the network, and lead back into the store. */
int offset_store_scan(struct mcfs_backend *b, mcfs_backend_scan_fn fn, void *arg,
                      struct mcfs_error *err)
{
    struct offset_store *s = (struct offset_store *)b;
    struct offset_entry *at = NULL;
    struct copies *c = calloc(1, sizeof(*c));
    bool more = c != NULL;
    int rc = c ? 0 : mcfs_fail_errno(err, ENOMEM, "scan");
    while (more && rc == 0) {
        at = take_copies(s, at, c);
        if (c->names.failed)
            rc = mcfs_fail_errno(err, ENOMEM, "scan");
        else
            more = visit(c, fn, arg) && at;
    }
    if (at)
        atomic_fetch_sub(&at->refs, 1);
    if (c)
        mcfs_buf_free(&c->names);
    free(c);
    return rc;
}
