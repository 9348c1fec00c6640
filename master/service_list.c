/* SPDX-License-Identifier: Apache-2.0 */
/* RPC methods on directories: listing, and look-up with what stands behind. */
#include "common/cleanup.h"
#include "master/master.h"

#define LIST_MAX 8192
#define AHEAD_MAX 256

struct listing {
    struct mcfs_buf *to;
    uint64_t run; /* of this master, as cookies carry it */
    uint32_t count;
};

/*
 * A cookie is a place in the directory's children, 32 bits, which only this run of the master
 * knows: after a restart others stand there.  So it carries the run, and one of an earlier run is
 * refused rather than answered with a listing that leaves entries out.
 */
#define PLACE_BITS 32
#define RUN_MASK 0xffffffull

static uint64_t run_bits(const struct master *m)
{
    return (m->epoch & RUN_MASK) << PLACE_BITS;
}

static uint64_t cookie_of(uint64_t run, uint64_t place)
{
    return place ? run | place : 0;
}

static int place_of(uint64_t run, uint64_t cookie, uint64_t *place, struct mcfs_error *err)
{
    *place = cookie & ((1ull << PLACE_BITS) - 1);
    if (cookie == cookie_of(run, *place))
        return 0;
    mcfs_fail(err, MCFS_INVALID_PARAMS,
              "the listing began before the master was restarted, and cannot go on");
    if (err)
        err->errnum = ESTALE;
    return -1;
}

static void list_one(const struct list_entry *e, void *arg)
{
    struct listing *l = arg;
    mp_put_array(l->to, 10);
    mp_put_str(l->to, e->name);
    mp_put_bool(l->to, e->is_dir);
    mp_put_bool(l->to, e->shadowed);
    mp_put_uint(l->to, cookie_of(l->run, e->cookie));
    mp_put_uint(l->to, e->version);
    mp_put_uint(l->to, e->size);
    put_attr(l->to, &e->attr);
    l->count++;
}

static int answer_listing(struct master *m, struct mcfs_rpc_request *r, bool names,
                          void (*fn)(const struct list_entry *e, void *arg), struct mcfs_error *err)
{
    struct mcfs_slice tenant, path;
    uint64_t session, cookie, max, place, next;
    uint32_t node;
    if (!mp_read_uint(&r->params, &session) || !mp_read_raw(&r->params, &tenant) ||
        !mp_read_raw(&r->params, &path) || !mp_read_uint(&r->params, &cookie) ||
        !mp_read_uint(&r->params, &max))
        return bad_params(r, err);
    /* To a node, a listing without what the node itself stores would be wrong: it waits until a new
     * master has its inventory. */
    struct listing l = {.run = run_bits(m)};
    if (session_node(m, session, &node, err) || place_of(l.run, cookie, &place, err))
        return -1;
    _cleanup_buf_ struct mcfs_buf entries = MCFS_BUF_INIT;
    l.to = &entries;
    size_t at = mp_begin_array(&entries);
    if (directory_list(m->directory, tenant, path, place, (uint32_t)MCFS_MIN(max, LIST_MAX), names,
                       fn, &l, &next, err))
        return -1;
    mp_end_array(&entries, at, l.count);
    mp_put_array(r->result, 2); /* the cookie is known last */
    mp_put_uint(r->result, cookie_of(l.run, next));
    mcfs_buf_append(r->result, entries.data, entries.len);
    r->result->failed |= entries.failed;
    return 0;
}

int method_list(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err)
{
    return answer_listing(m, r, false, list_one, err);
}

static void list_name(const struct list_entry *e, void *arg)
{
    struct listing *l = arg;
    mp_put_array(l->to, 3);
    mp_put_str(l->to, e->name);
    mp_put_uint(l->to, e->is_dir ? 1 : e->shadowed ? 2 : 0);
    mp_put_uint(l->to, cookie_of(l->run, e->cookie));
    l->count++;
}

int method_list_names(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err)
{
    return answer_listing(m, r, true, list_name, err);
}

/* ---- look-up ahead ---- */

/* A listing is taken under the tree's lock, leases are granted under the shards', which come first:
 * so names are gathered, then looked up. */
struct gathered {
    struct mcfs_buf keys; /* whole keys, one behind the other */
    struct mcfs_slice dir;
    struct list_entry *entries; /* name: offset (as data) and length of the key in `keys` */
    uint32_t count, max;
};

static void gather(const struct list_entry *e, void *arg)
{
    struct gathered *g = arg;
    if (g->count == g->max)
        return;
    struct list_entry *to = &g->entries[g->count++];
    *to = *e;
    to->name.len = g->dir.len + e->name.len;
    mcfs_buf_append(&g->keys, g->dir.data, g->dir.len);
    mcfs_buf_append(&g->keys, e->name.data, e->name.len);
}

static void gathered_free(struct gathered *g)
{
    mcfs_buf_free(&g->keys);
    free(g->entries);
}

static int gather_list(struct master *m, struct gathered *g, struct mcfs_slice tenant,
                       uint64_t cookie, uint64_t *next, struct mcfs_error *err)
{
    g->entries = malloc((size_t)g->max * sizeof(*g->entries));
    if (!g->entries)
        return mcfs_fail_errno(err, ENOMEM, "listing");
    if (directory_list(m->directory, tenant, g->dir, cookie, g->max, true, gather, g, next, err))
        return -1;
    if (g->keys.failed)
        return mcfs_fail_errno(err, ENOMEM, "listing");
    const char *at = (const char *)g->keys.data;
    for (uint32_t i = 0; i < g->count; i++) {
        g->entries[i].name.data = at;
        at += g->entries[i].name.len;
    }
    return 0;
}

struct neighbours {
    size_t dir_len;
    struct mcfs_slice keys[64];
    struct mcfs_buf *to;
    uint32_t count;
};

static void put_neighbour(uint32_t i, const struct object_view *v, const struct mcfs_error *err,
                          void *arg)
{
    struct neighbours *n = arg;
    (void)err;
    if (!v)
        return;
    mp_put_array(n->to, 8);
    mp_put_str(n->to, mcfs_slice(n->keys[i].data + n->dir_len, n->keys[i].len - n->dir_len));
    mp_put_uint(n->to, v->version);
    mp_put_uint(n->to, v->size);
    mp_put_uint(n->to, v->lease_ms);
    put_attr(n->to, &v->attr);
    n->count++;
}

/* Appends each gathered object that is still there, with a lease on it; returns how many.
 * Directories and shadowed objects are left out: a look-up of those says more than this. */
static uint32_t put_neighbours(struct master *m, const struct gathered *g, struct mcfs_slice tenant,
                               uint32_t node, struct mcfs_buf *b)
{
    struct neighbours to = {.dir_len = g->dir.len, .to = b};
    for (uint32_t i = 0; i < g->count;) {
        uint32_t n = 0;
        for (; i < g->count && n < MCFS_ARRAY_SIZE(to.keys); i++)
            if (!g->entries[i].is_dir && !g->entries[i].shadowed)
                to.keys[n++] = g->entries[i].name;
        directory_get_batch(m->directory, tenant, to.keys, n, node, put_neighbour, &to);
    }
    return to.count;
}

int method_lookup_ahead(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err)
{
    _cleanup_(gathered_free) struct gathered g = {0};
    struct mcfs_slice tenant, path;
    struct object_view view;
    uint64_t session, max, next;
    uint32_t node;
    if (!mp_read_uint(&r->params, &session) || !mp_read_raw(&r->params, &tenant) ||
        !mp_read_raw(&r->params, &path) || !mp_read_uint(&r->params, &max))
        return bad_params(r, err);
    if (session_node(m, session, &node, err))
        return -1;
    mp_put_array(r->result, 3);
    if (put_lookup(m, r->result, tenant, path, node, &view, err))
        return -1;
    uint32_t count = 0;
    size_t at = mp_begin_array(r->result);
    const char *slash = path.len ? memrchr(path.data, '/', path.len) : NULL;
    g.dir = mcfs_slice(path.data, slash ? (size_t)(slash + 1 - path.data) : 0);
    g.max = (uint32_t)MCFS_MIN(max, AHEAD_MAX);
    /* What stands behind is a gift: without it the answer is still one. */
    if (view.version && g.max && !gather_list(m, &g, tenant, view.cookie, &next, NULL))
        count = put_neighbours(m, &g, tenant, node, r->result);
    mp_end_array(r->result, at, count);
    return 0;
}
