/* SPDX-License-Identifier: Apache-2.0 */
#include "common/cleanup.h"
#include "master/client/session.h"

#include <stdio.h>

static void copy_text(char *to, size_t cap, struct mcfs_slice from)
{
    snprintf(to, cap, "%.*s", MCFS_SLICE_ARG(from));
}

int mcfs_master_segments(struct mcfs_master *m,
                         void (*fn)(const struct mcfs_master_segment *segment, void *arg),
                         void *arg, struct mcfs_error *err)
{
    _cleanup_buf_ struct mcfs_buf p = MCFS_BUF_INIT;
    _cleanup_reply_ struct mcfs_rpc_reply reply = MCFS_RPC_REPLY_INIT;
    if (master_call(m, "GetAllSegments", false, 0, &p, &reply, NULL, err))
        return -1;
    struct mp_reader *r = &reply.result;
    uint32_t n;
    if (!mp_read_array(r, &n))
        return master_bad_answer("GetAllSegments", err);
    for (uint32_t i = 0; i < n; i++) {
        struct mcfs_master_segment g;
        struct mcfs_slice id, name, node, endpoint, state;
        if (!mp_read_array_of(r, 10) || !mp_read_raw(r, &id) || !mp_read_raw(r, &name) ||
            !mp_read_raw(r, &node) || !mp_read_raw(r, &endpoint) || !mp_read_uint(r, &g.base) ||
            !mp_read_uint(r, &g.size) || !mp_read_uint(r, &g.used) ||
            !mp_read_uint(r, &g.largest_free) || !mp_read_uint(r, &g.ranges) ||
            !mp_read_raw(r, &state))
            return master_bad_answer("GetAllSegments", err);
        copy_text(g.id, sizeof(g.id), id);
        copy_text(g.name, sizeof(g.name), name);
        copy_text(g.node_id, sizeof(g.node_id), node);
        copy_text(g.endpoint, sizeof(g.endpoint), endpoint);
        copy_text(g.state, sizeof(g.state), state);
        fn(&g, arg);
    }
    return 0;
}
