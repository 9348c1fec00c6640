/* SPDX-License-Identifier: Apache-2.0 */
/* Eviction, as a node asks for it. */
#include "common/cleanup.h"
#include "master/client/session.h"

int mcfs_master_evict(struct mcfs_master *m, struct mcfs_master_eviction *items, uint32_t n,
                      bool soft_too, const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    static const char method[] = "BatchEvictDiskReplica";
    _cleanup_buf_ struct mcfs_buf p = MCFS_BUF_INIT;
    _cleanup_reply_ struct mcfs_rpc_reply reply = MCFS_RPC_REPLY_INIT;
    struct mp_reader *r = &reply.result;
    mp_put_bool(&p, soft_too);
    mp_put_array(&p, n);
    for (uint32_t i = 0; i < n; i++) {
        mp_put_array(&p, 3);
        mp_put_str(&p, items[i].tenant);
        mp_put_str(&p, items[i].key);
        mp_put_uint(&p, items[i].version);
    }
    if (master_call(m, method, true, 2, &p, &reply, cancel, err))
        return -1;
    if (!mp_read_array_of(r, n))
        return master_bad_answer(method, err);
    for (uint32_t i = 0; i < n; i++) {
        int64_t code;
        if (!mp_read_array_of(r, 2) || !mp_read_int(r, &code) || code > 0 || code < INT32_MIN ||
            !mp_skip(r, NULL))
            return master_bad_answer(method, err);
        items[i].code = (int)code;
    }
    return 0;
}
