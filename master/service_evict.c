/* SPDX-License-Identifier: Apache-2.0 */
/* The RPC method by which a node evicts. */
#include "master/master.h"

#define BATCH_MAX 4096

struct item {
    struct mcfs_slice tenant, key;
    uint64_t version;
};

static bool read_items(struct mp_reader *p, struct item *items, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (!mp_read_array_of(p, 3) || !mp_read_raw(p, &items[i].tenant) ||
            !mp_read_raw(p, &items[i].key) || !mp_read_uint(p, &items[i].version))
            return false;
    return true;
}

static int evict_one(struct master *m, const struct mcfs_rpc_request *r, const struct item *item,
                     uint32_t node, bool soft_too, struct mcfs_error *err)
{
    if (mcfs_rpc_key_check(mcfs_rpc_conn_key(r->conn), item->tenant, err))
        return -1;
    return directory_evict_disk(m->directory, item->tenant, item->key, item->version, node,
                                soft_too, err);
}

int method_batch_evict_disk_replica(struct master *m, struct mcfs_rpc_request *r,
                                    struct mcfs_error *err)
{
    struct item items[BATCH_MAX];
    uint64_t session;
    uint32_t node, n;
    bool soft_too;
    struct mp_reader *p = &r->params;
    if (!mp_read_uint(p, &session) || !mp_read_bool(p, &soft_too) || !mp_read_array(p, &n))
        return bad_params(r, err);
    if (n > BATCH_MAX)
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "at most %d keys in a batch; these are %u",
                         BATCH_MAX, n);
    /* Nothing is withdrawn before the whole request has been read. */
    if (!read_items(p, items, n))
        return bad_params(r, err);
    if (session_node(m, session, &node, err))
        return -1;
    if (!node)
        return mcfs_fail(err, MCFS_ILLEGAL_CLIENT, "only a node has replicas to evict");
    soft_too &= m->flags.allow_evict_soft_pinned_objects;
    mp_put_array(r->result, n);
    for (uint32_t i = 0; i < n; i++) {
        struct mcfs_error item = MCFS_ERROR_INIT;
        mp_put_array(r->result, 2);
        if (evict_one(m, r, &items[i], node, soft_too, &item)) {
            mp_put_int(r->result, item.code);
            mp_put_cstr(r->result, item.msg);
        } else {
            mp_put_uint(r->result, 0);
            mp_put_nil(r->result);
        }
    }
    return 0;
}
