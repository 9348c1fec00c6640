/* SPDX-License-Identifier: Apache-2.0 */
/* Puts, and what else changes one or two objects. */
#include "common/cleanup.h"
#include "master/client/session.h"

static void put_attr(struct mcfs_buf *b, const struct mcfs_attr *attr)
{
    mp_put_uint(b, attr->mode & 07777);
    mp_put_uint(b, attr->uid);
    mp_put_uint(b, attr->gid);
    mp_put_int(b, attr->mtime_ns);
}

int mcfs_master_put_start(struct mcfs_master *m, struct mcfs_slice tenant, struct mcfs_slice key,
                          uint64_t size, bool replace, uint64_t *version,
                          const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    _cleanup_buf_ struct mcfs_buf p = MCFS_BUF_INIT;
    _cleanup_reply_ struct mcfs_rpc_reply reply = MCFS_RPC_REPLY_INIT;
    mp_put_str(&p, tenant);
    mp_put_str(&p, key);
    mp_put_uint(&p, size);
    mp_put_bool(&p, replace);
    if (master_call(m, "PutStart", true, 4, &p, &reply, cancel, err))
        return -1;
    if (!mp_read_array_of(&reply.result, 1) || !mp_read_uint(&reply.result, version))
        return master_bad_answer("PutStart", err);
    return 0;
}

int mcfs_master_put_end(struct mcfs_master *m, const struct mcfs_master_put_end *e,
                        struct mcfs_master_put_result *out, const struct mcfs_cancel *cancel,
                        struct mcfs_error *err)
{
    _cleanup_buf_ struct mcfs_buf p = MCFS_BUF_INIT;
    _cleanup_reply_ struct mcfs_rpc_reply reply = MCFS_RPC_REPLY_INIT;
    mp_put_str(&p, e->tenant);
    mp_put_str(&p, e->key);
    mp_put_uint(&p, e->version);
    mp_put_uint(&p, e->size);
    put_attr(&p, &e->attr);
    mp_put_uint(&p, e->data_type);
    mp_put_bool(&p, e->no_replace);
    if (e->from_version)
        mp_put_str(&p, e->from);
    else
        mp_put_nil(&p);
    mp_put_uint(&p, e->from_version);
    if (master_call(m, "PutEnd", true, 12, &p, &reply, cancel, err))
        return -1;
    struct mp_reader *r = &reply.result;
    if (!mp_read_array_of(r, 4) || !mp_read_uint(r, &out->replaced_version) ||
        !mp_read_bool(r, &out->superseded) || !mp_read_u32_max(r, UINT32_MAX, &out->lease_ms) ||
        !mp_read_u32_max(r, MCFS_SHARD_COUNT, &out->shard))
        return master_bad_answer("PutEnd", err);
    return 0;
}

int mcfs_master_exchange(struct mcfs_master *m, const struct mcfs_master_exchange *x,
                         uint32_t *lease_ms, const struct mcfs_cancel *cancel,
                         struct mcfs_error *err)
{
    _cleanup_buf_ struct mcfs_buf p = MCFS_BUF_INIT;
    _cleanup_reply_ struct mcfs_rpc_reply reply = MCFS_RPC_REPLY_INIT;
    mp_put_str(&p, x->tenant);
    for (unsigned i = 0; i < 2; i++) {
        mp_put_str(&p, x->side[i].key);
        mp_put_uint(&p, x->side[i].version);
        mp_put_uint(&p, x->side[i].new_version);
    }
    if (master_call(m, "Exchange", true, 7, &p, &reply, cancel, err))
        return -1;
    if (!mp_read_array_of(&reply.result, 1) ||
        !mp_read_u32_max(&reply.result, UINT32_MAX, lease_ms))
        return master_bad_answer("Exchange", err);
    return 0;
}

int mcfs_master_put_revoke(struct mcfs_master *m, uint64_t version, struct mcfs_error *err)
{
    _cleanup_buf_ struct mcfs_buf p = MCFS_BUF_INIT;
    _cleanup_reply_ struct mcfs_rpc_reply reply = MCFS_RPC_REPLY_INIT;
    mp_put_uint(&p, version);
    return master_call(m, "PutRevoke", true, 1, &p, &reply, NULL, err);
}

int mcfs_master_remove(struct mcfs_master *m, struct mcfs_slice tenant, struct mcfs_slice key,
                       uint64_t version, bool force, uint64_t *removed,
                       const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    struct mcfs_error e = MCFS_ERROR_INIT;
    _cleanup_buf_ struct mcfs_buf p = MCFS_BUF_INIT;
    _cleanup_reply_ struct mcfs_rpc_reply reply = MCFS_RPC_REPLY_INIT;
    *removed = 0;
    mp_put_str(&p, tenant);
    mp_put_str(&p, key);
    mp_put_uint(&p, version);
    mp_put_bool(&p, force);
    if (master_call(m, "Remove", true, 4, &p, &reply, cancel, &e)) {
        if (e.code == MCFS_OBJECT_NOT_FOUND && reply.repeated) {
            /* The first try removed it and its answer was lost; the store drops the version all the
             * same. */
            *removed = version;
            return 0;
        }
        if (err)
            *err = e;
        return -1;
    }
    if (!mp_read_array_of(&reply.result, 1) || !mp_read_uint(&reply.result, removed))
        return master_bad_answer("Remove", err);
    return 0;
}

int mcfs_master_set_attr(struct mcfs_master *m, struct mcfs_slice tenant, struct mcfs_slice key,
                         uint64_t version, uint32_t valid, struct mcfs_attr *attr,
                         const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    _cleanup_buf_ struct mcfs_buf p = MCFS_BUF_INIT;
    _cleanup_reply_ struct mcfs_rpc_reply reply = MCFS_RPC_REPLY_INIT;
    mp_put_str(&p, tenant);
    mp_put_str(&p, key);
    mp_put_uint(&p, version);
    mp_put_uint(&p, valid);
    put_attr(&p, attr);
    if (master_call(m, "SetAttr", true, 8, &p, &reply, cancel, err))
        return -1;
    if (!mp_read_array_of(&reply.result, 4) || !master_read_attr(&reply.result, attr))
        return master_bad_answer("SetAttr", err);
    return 0;
}
