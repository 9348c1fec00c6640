/* SPDX-License-Identifier: Apache-2.0 */
/* Pins, and what is done to many objects at once. */
#include "common/cleanup.h"
#include "master/client/session.h"

int mcfs_master_set_pin(struct mcfs_master *m, struct mcfs_slice tenant, struct mcfs_slice key,
                        bool hard, const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    _cleanup_buf_ struct mcfs_buf p = MCFS_BUF_INIT;
    _cleanup_reply_ struct mcfs_rpc_reply reply = MCFS_RPC_REPLY_INIT;
    mp_put_str(&p, tenant);
    mp_put_str(&p, key);
    mp_put_bool(&p, hard);
    return master_call(m, "SetPin", true, 3, &p, &reply, cancel, err);
}

int mcfs_master_set_soft_pin(struct mcfs_master *m, struct mcfs_slice tenant, struct mcfs_slice key,
                             const uint64_t *ms, const struct mcfs_cancel *cancel,
                             struct mcfs_error *err)
{
    _cleanup_buf_ struct mcfs_buf p = MCFS_BUF_INIT;
    _cleanup_reply_ struct mcfs_rpc_reply reply = MCFS_RPC_REPLY_INIT;
    mp_put_str(&p, tenant);
    mp_put_str(&p, key);
    if (ms)
        mp_put_uint(&p, *ms);
    else
        mp_put_nil(&p);
    return master_call(m, "SetSoftPin", true, 3, &p, &reply, cancel, err);
}

/* Takes [next cursor, [[key, 0, removed version] or [key, code, text] ...]] apart. */
static int read_removals(struct mp_reader *r, const char *method, uint64_t *cursor,
                         void (*fn)(const struct mcfs_master_removal *r, void *arg), void *arg,
                         struct mcfs_error *err)
{
    uint32_t n;
    if (!mp_read_array_of(r, 2) || !mp_read_uint(r, cursor) || !mp_read_array(r, &n))
        return master_bad_answer(method, err);
    for (uint32_t i = 0; i < n; i++) {
        struct mcfs_master_removal e = {0};
        int64_t code;
        if (!mp_read_array_of(r, 3) || !mp_read_raw(r, &e.key) || !mp_read_int(r, &code) ||
            code > 0 || code < INT32_MIN ||
            !(code ? mp_read_raw(r, &e.text) : mp_read_uint(r, &e.removed)))
            return master_bad_answer(method, err);
        e.code = (int)code;
        fn(&e, arg);
    }
    return 0;
}

int mcfs_master_remove_matching(struct mcfs_master *m, struct mcfs_slice tenant,
                                const struct mcfs_slice *pattern, bool force, uint64_t *cursor,
                                void (*fn)(const struct mcfs_master_removal *r, void *arg),
                                void *arg, const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    const char *method = pattern ? "RemoveByRegex" : "RemoveAll";
    _cleanup_buf_ struct mcfs_buf p = MCFS_BUF_INIT;
    _cleanup_reply_ struct mcfs_rpc_reply reply = MCFS_RPC_REPLY_INIT;
    mp_put_str(&p, tenant);
    if (pattern)
        mp_put_str(&p, *pattern);
    mp_put_bool(&p, force);
    mp_put_uint(&p, *cursor);
    if (master_call(m, method, true, pattern ? 4 : 3, &p, &reply, cancel, err))
        return -1;
    return read_removals(&reply.result, method, cursor, fn, arg, err);
}

int mcfs_master_get_matching(struct mcfs_master *m, struct mcfs_slice tenant,
                             struct mcfs_slice pattern, uint64_t *cursor,
                             void (*fn)(struct mcfs_slice key, const struct mcfs_master_object *o,
                                        void *arg),
                             void *arg, const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    _cleanup_buf_ struct mcfs_buf p = MCFS_BUF_INIT;
    _cleanup_reply_ struct mcfs_rpc_reply reply = MCFS_RPC_REPLY_INIT;
    struct mp_reader *r = &reply.result;
    uint32_t n;
    mp_put_str(&p, tenant);
    mp_put_str(&p, pattern);
    mp_put_uint(&p, *cursor);
    if (master_call(m, "GetReplicaListByRegex", true, 3, &p, &reply, cancel, err))
        return -1;
    if (!mp_read_array_of(r, 2) || !mp_read_uint(r, cursor) || !mp_read_array(r, &n))
        return master_bad_answer("GetReplicaListByRegex", err);
    for (uint32_t i = 0; i < n; i++) {
        struct mcfs_slice key;
        struct mcfs_master_object o = {0};
        if (!mp_read_array_of(r, 2) || !mp_read_raw(r, &key) || !master_read_object(r, &o))
            return master_bad_answer("GetReplicaListByRegex", err);
        fn(key, &o, arg);
    }
    return 0;
}
