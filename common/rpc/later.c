/* SPDX-License-Identifier: Apache-2.0 */
/* Answers that are given when the handler has long returned, from whichever thread. */
#include "common/rpc/conn.h"

#include "common/cleanup.h"

struct mcfs_rpc_later {
    struct mcfs_rpc_conn *conn;
    uint32_t msgid;
};

void rpc_put_error(struct mcfs_buf *b, const struct mcfs_error *e)
{
    mp_put_array(b, 3);
    mp_put_int(b, e->code);
    mp_put_int(b, e->errnum);
    mp_put_cstr(b, e->msg);
    mp_put_nil(b);
}

struct mcfs_rpc_later *mcfs_rpc_answer_later(struct mcfs_rpc_request *r)
{
    struct mcfs_rpc_later *later = r->notification ? NULL : malloc(sizeof(*later));
    if (!later)
        return NULL;
    *later = (struct mcfs_rpc_later){mcfs_rpc_conn_ref(r->conn), r->msgid};
    return r->later = later;
}

void mcfs_rpc_later_free(struct mcfs_rpc_later *later)
{
    if (!later)
        return;
    mcfs_rpc_conn_unref(later->conn);
    free(later);
}

bool mcfs_rpc_later_is_gone(const struct mcfs_rpc_later *later)
{
    MCFS_LOCK_SCOPE(&later->conn->out_lock);
    return later->conn->gone;
}

int mcfs_rpc_later_send(struct mcfs_rpc_later *later, const struct mcfs_buf *result,
                        const struct mcfs_error *err)
{
    _cleanup_buf_ struct mcfs_buf b = MCFS_BUF_INIT;
    mp_put_array(&b, 4);
    mp_put_uint(&b, 1);
    mp_put_uint(&b, later->msgid);
    if (result) {
        mp_put_nil(&b);
        mcfs_buf_append(&b, result->data, result->len);
    } else {
        rpc_put_error(&b, err);
    }
    int rc = b.failed ? -1 : conn_send(later->conn, b.data, b.len, NULL);
    mcfs_rpc_later_free(later);
    return rc;
}
