/* SPDX-License-Identifier: Apache-2.0 */
#include "common/rpc/rpc.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Frames as a server sees them: whatever scanning accepts, parsing must survive. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mp_scan scan = {0}, pieces = {0};
    struct mcfs_rpc_message m;
    int64_t n = mp_scan(&scan, data, size, MCFS_RPC_FRAME_MAX), k = 0;
    for (size_t have = 0; have <= size && k == 0; have += 1 + size / 7)
        k = mp_scan(&pieces, data, have, MCFS_RPC_FRAME_MAX);
    if (n > 0)
        mcfs_rpc_parse(data, (size_t)n, &m);
    struct mp_reader r = mp_reader(data, size);
    struct mcfs_slice s;
    uint64_t u;
    double d;
    uint32_t count;
    while (!r.failed && r.p < r.end) {
        switch (mp_peek(&r)) {
        case MP_ARRAY:
            mp_read_array(&r, &count);
            break;
        case MP_MAP:
            mp_read_map(&r, &count);
            break;
        case MP_STR:
        case MP_BIN:
            mp_read_raw(&r, &s);
            break;
        case MP_UINT:
            mp_read_uint(&r, &u);
            break;
        case MP_NEGINT:
        case MP_FLOAT:
            mp_read_double(&r, &d);
            break;
        default:
            mp_skip(&r, NULL);
        }
    }
    return 0;
}
