/* SPDX-License-Identifier: Apache-2.0 */
#include "common/rpc/rpc.h"

#include <stdio.h>

static int parse_error(struct mp_reader *r, struct mcfs_error *e)
{
    *e = (struct mcfs_error)MCFS_ERROR_INIT;
    if (mp_peek(r) == MP_NIL)
        return mp_read_nil(r) ? 0 : -1;
    struct mcfs_slice text = {NULL, 0};
    int64_t code = MCFS_RPC_FAIL, errnum = EIO;
    if (mp_peek(r) == MP_ARRAY) {
        if (!mp_read_array_of(r, 3) || !mp_read_int(r, &code) || !mp_read_int(r, &errnum) ||
            !mp_read_raw(r, &text))
            return -1;
    } else if (mp_peek(r) == MP_STR) {
        mp_read_str(r, &text); /* a server of somebody else's */
    } else if (!mp_skip(r, NULL)) {
        return -1;
    }
    e->code = code >= 0 || code < INT32_MIN ? MCFS_RPC_FAIL : (int)code;
    e->errnum = errnum > 0 && errnum < 4096 ? (int)errnum : mcfs_code_errno(e->code);
    snprintf(e->msg, sizeof(e->msg), "%.*s", MCFS_SLICE_ARG(text));
    return r->failed ? -1 : 0;
}

int mcfs_rpc_parse(const void *frame, size_t len, struct mcfs_rpc_message *m)
{
    struct mp_reader r = mp_reader(frame, len);
    uint32_t n;
    uint64_t kind, msgid = 0;
    *m = (struct mcfs_rpc_message){0};
    if (!mp_read_array(&r, &n) || !mp_read_uint(&r, &kind) || kind > 2 ||
        n != (kind == 2 ? 3u : 4u))
        return -1;
    m->kind = (int)kind;
    if (kind != 2 && (!mp_read_uint(&r, &msgid) || msgid > UINT32_MAX))
        return -1;
    m->msgid = (uint32_t)msgid;
    if (kind == 1) {
        if (parse_error(&r, &m->error))
            return -1;
    } else if (!mp_read_str(&r, &m->method) || mp_peek(&r) != MP_ARRAY) {
        return -1;
    }
    /* Its last value: where that ends is known from the frame's length. */
    m->body = mcfs_slice(r.p, (size_t)(r.end - r.p));
    return r.failed ? -1 : 0;
}

void mcfs_rpc_put_request(struct mcfs_buf *b, uint32_t msgid, const char *method,
                          const struct mcfs_buf *params)
{
    mp_put_array(b, 4);
    mp_put_uint(b, 0);
    mp_put_uint(b, msgid);
    mp_put_cstr(b, method);
    mcfs_buf_append(b, params->data, params->len);
    b->failed |= params->failed;
}
