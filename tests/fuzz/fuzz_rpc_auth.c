/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of a caller that has proven nothing, one behind the other: none of them proves a key. */
#include "common/rpc/auth.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[] = "admin 000102030405060708090a0b0c0d0e0f\n";
    struct mcfs_rpc_keys *keys = mcfs_rpc_keys_parse(text, sizeof(text) - 1, "text", NULL);
    struct rpc_auth auth = {0};
    struct mcfs_buf result = MCFS_BUF_INIT;
    size_t at = 0;
    while (keys && at < size) {
        struct mp_scan scan = {0};
        struct mcfs_rpc_message m;
        struct mcfs_error err = MCFS_ERROR_INIT;
        uint32_t count;
        int64_t n = mp_scan(&scan, data + at, size - at, AUTH_FRAME_MAX);
        if (n <= 0 || mcfs_rpc_parse(data + at, (size_t)n, &m) || m.kind == 1)
            break;
        at += (size_t)n;
        struct mp_reader params = mp_reader(m.body.data, m.body.len);
        mp_read_array(&params, &count);
        mcfs_buf_reset(&result);
        if (rpc_auth_step(&auth, keys, m.method, &params, count, &result, &err)) {
            if (err.code != MCFS_ILLEGAL_CLIENT || !err.msg[0])
                abort();
            break;
        }
        if (auth.done)
            abort();
    }
    mcfs_buf_free(&result);
    mcfs_rpc_keys_free(keys);
    return 0;
}
