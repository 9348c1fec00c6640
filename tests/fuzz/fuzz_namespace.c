/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/namespace.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A path that decodes to a key encodes back to one that decodes to the same key. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mcfs_buf key = MCFS_BUF_INIT, path = MCFS_BUF_INIT, again = MCFS_BUF_INIT;
    if (namespace_key(mcfs_slice(data, size), &key) && key.len > 0) {
        namespace_path(mcfs_slice(key.data, key.len), false, &path);
        if (!namespace_key(mcfs_slice(path.data, path.len), &again) ||
            !mcfs_slice_eq(mcfs_slice(key.data, key.len), mcfs_slice(again.data, again.len)))
            abort();
    }
    mcfs_buf_free(&key);
    mcfs_buf_free(&path);
    mcfs_buf_free(&again);
    return 0;
}
