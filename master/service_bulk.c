/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RPC methods on many objects at once: removal of a batch, and what a pattern finds.  Those that
 * walk the directory do so shard by shard and stop when they have found or spent enough; the cursor
 * in their answer, the next shard, is where the caller goes on.
 */
#include "common/cleanup.h"
#include "common/clock.h"
#include "master/master.h"
#include "master/pattern.h"

#define BATCH_MAX 4096
#define FOUND_MAX 1000 /* results after which a walk ends with its shard */
#define WALK_MS 20     /* time likewise */

/* The keys of one shard, copied, so that matching holds no lock. */
struct keys {
    struct mcfs_buf bytes;
    struct mcfs_buf lengths; /* uint32_t each */
};

static void copy_key(struct mcfs_slice key, void *arg)
{
    struct keys *k = arg;
    uint32_t len = (uint32_t)key.len;
    mcfs_buf_append(&k->bytes, key.data, key.len);
    mcfs_buf_append(&k->lengths, &len, sizeof(len));
}

static void keys_free(struct keys *k)
{
    mcfs_buf_free(&k->bytes);
    mcfs_buf_free(&k->lengths);
}

struct walk {
    struct master *m;
    struct mcfs_slice tenant;
    struct pattern *pattern; /* NULL: every key */
    uint32_t node;
    bool force;
    struct mcfs_buf found; /* encoded results */
    uint32_t count;
    void (*visit)(struct walk *w, struct mcfs_slice key);
};

static void walk_free(struct walk *w)
{
    pattern_free(w->pattern);
    mcfs_buf_free(&w->found);
}

static int walk_shard(struct walk *w, uint32_t shard, struct mcfs_error *err)
{
    _cleanup_(keys_free) struct keys k = {MCFS_BUF_INIT, MCFS_BUF_INIT};
    directory_shard_keys(w->m->directory, w->tenant, shard, copy_key, &k);
    if (k.bytes.failed || k.lengths.failed)
        return mcfs_fail_errno(err, ENOMEM, "keys of a shard");
    const char *at = (const char *)k.bytes.data;
    for (size_t i = 0; i < k.lengths.len; i += sizeof(uint32_t)) {
        uint32_t len;
        memcpy(&len, k.lengths.data + i, sizeof(len));
        struct mcfs_slice key = mcfs_slice(at, len);
        int rc = w->pattern ? pattern_match(w->pattern, key, err) : 1;
        if (rc < 0)
            return -1;
        if (rc > 0)
            w->visit(w, key);
        at += len;
    }
    return 0;
}

/* Walks on from the cursor and answers [next cursor, [result ...]]. */
static int walk(struct walk *w, uint64_t cursor, struct mcfs_rpc_request *r, struct mcfs_error *err)
{
    int64_t until_ms = mcfs_mono_ms() + WALK_MS;
    if (cursor >= MCFS_SHARD_COUNT)
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "cursor out of range");
    uint32_t shard = (uint32_t)cursor;
    do {
        if (walk_shard(w, shard, err))
            return -1;
        shard++;
    } while (shard < MCFS_SHARD_COUNT && w->count < FOUND_MAX && mcfs_mono_ms() < until_ms);
    if (w->found.failed)
        return mcfs_fail_errno(err, ENOMEM, "answer");
    mp_put_array(r->result, 2);
    mp_put_uint(r->result, shard < MCFS_SHARD_COUNT ? shard : 0);
    mp_put_array(r->result, w->count);
    mcfs_buf_append(r->result, w->found.data, w->found.len);
    return 0;
}

/* Appends "0, version" or "code, text". */
static void put_removal(struct master *m, struct mcfs_buf *b, struct mcfs_slice tenant,
                        struct mcfs_slice key, uint64_t version, uint32_t node, bool force)
{
    struct mcfs_error item = MCFS_ERROR_INIT;
    uint64_t removed;
    if (directory_remove(m->directory, tenant, key, version, node, force, &removed, &item)) {
        mp_put_int(b, item.code);
        mp_put_cstr(b, item.msg);
    } else {
        mp_put_uint(b, 0);
        mp_put_uint(b, removed);
    }
}

static void visit_remove(struct walk *w, struct mcfs_slice key)
{
    w->count++;
    mp_put_array(&w->found, 3);
    mp_put_str(&w->found, key);
    put_removal(w->m, &w->found, w->tenant, key, 0, w->node, w->force);
}

static void visit_get(struct walk *w, struct mcfs_slice key)
{
    struct object_view v;
    if (directory_get(w->m->directory, w->tenant, key, w->node, &v, NULL))
        return; /* removed meanwhile */
    w->count++;
    mp_put_array(&w->found, 2);
    mp_put_str(&w->found, key);
    put_object(w->m, &w->found, &v);
}

int method_get_replica_list_by_regex(struct master *m, struct mcfs_rpc_request *r,
                                     struct mcfs_error *err)
{
    _cleanup_(walk_free) struct walk w = {.m = m, .visit = visit_get};
    struct mcfs_slice pattern;
    uint64_t session, cursor;
    struct mp_reader *p = &r->params;
    if (!mp_read_uint(p, &session) || !mp_read_raw(p, &w.tenant) || !mp_read_raw(p, &pattern) ||
        !mp_read_uint(p, &cursor))
        return bad_params(r, err);
    if (session_node(m, session, &w.node, err) || !(w.pattern = pattern_new(pattern, err)))
        return -1;
    return walk(&w, cursor, r, err);
}

int method_remove_by_regex(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err)
{
    _cleanup_(walk_free) struct walk w = {.m = m, .visit = visit_remove};
    struct mcfs_slice pattern;
    uint64_t session, cursor;
    struct mp_reader *p = &r->params;
    if (!mp_read_uint(p, &session) || !mp_read_raw(p, &w.tenant) || !mp_read_raw(p, &pattern) ||
        !mp_read_bool(p, &w.force) || !mp_read_uint(p, &cursor))
        return bad_params(r, err);
    if (session_node(m, session, &w.node, err) || !(w.pattern = pattern_new(pattern, err)))
        return -1;
    return walk(&w, cursor, r, err);
}

int method_remove_all(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err)
{
    _cleanup_(walk_free) struct walk w = {.m = m, .visit = visit_remove};
    uint64_t session, cursor;
    struct mp_reader *p = &r->params;
    if (!mp_read_uint(p, &session) || !mp_read_raw(p, &w.tenant) || !mp_read_bool(p, &w.force) ||
        !mp_read_uint(p, &cursor))
        return bad_params(r, err);
    if (session_node(m, session, &w.node, err))
        return -1;
    return walk(&w, cursor, r, err);
}

int method_batch_remove(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err)
{
    struct mcfs_slice tenant, keys[BATCH_MAX];
    uint64_t session, versions[BATCH_MAX];
    uint32_t node, n;
    bool force;
    struct mp_reader *p = &r->params;
    if (!mp_read_uint(p, &session) || !mp_read_raw(p, &tenant) || !mp_read_array(p, &n))
        return bad_params(r, err);
    if (n > BATCH_MAX)
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "at most %d keys in a batch; these are %u",
                         BATCH_MAX, n);
    for (uint32_t i = 0; i < n; i++)
        if (!mp_read_array_of(p, 2) || !mp_read_raw(p, &keys[i]) || !mp_read_uint(p, &versions[i]))
            return bad_params(r, err);
    /* Nothing is removed before the whole request has been read. */
    if (!mp_read_bool(p, &force))
        return bad_params(r, err);
    if (session_node(m, session, &node, err))
        return -1;
    mp_put_array(r->result, n);
    for (uint32_t i = 0; i < n; i++) {
        mp_put_array(r->result, 2);
        put_removal(m, r->result, tenant, keys[i], versions[i], node, force);
    }
    return 0;
}
