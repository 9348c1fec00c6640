/* SPDX-License-Identifier: Apache-2.0 */
/* The marker of a file-per-key store: what is one is what we would have written. */
#include "backends/file_per_key/files_marker.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mcfs_buf want = MCFS_BUF_INIT;
    files_marker_put(&want);
    if (files_marker_parse((const char *)data, size, NULL) == 0 &&
        (size != want.len || memcmp(data, want.data, size) != 0))
        abort();
    mcfs_buf_free(&want);
    return 0;
}
