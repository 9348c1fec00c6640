/* SPDX-License-Identifier: Apache-2.0 */
#include "common/rpc/client_private.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The head of an answer is what the reader of whole values takes it for, and every beginning of it
 * asks for more. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint32_t msgid = size > 1 ? data[1] : 0, n;
    uint64_t value, same, kind, id;
    bool other;
    size_t len = rpc_incoming_head(data, size, msgid, &value, &other);
    if (len > size || (len && other))
        abort();
    for (size_t part = 0; part < len; part++)
        if (rpc_incoming_head(data, part, msgid, &same, &other) || other)
            abort();
    struct mp_reader r = mp_reader(data, size);
    struct mcfs_slice bytes;
    if (len == 0)
        return 0;
    if (!mp_read_array(&r, &n) || n != 4 || !mp_read_uint(&r, &kind) || kind != 1 ||
        !mp_read_uint(&r, &id) || id != msgid || !mp_read_nil(&r))
        abort();
    if (size - len >= value && (!mp_read_bin(&r, &bytes) || bytes.len != value))
        abort();
    return 0;
}
