/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/node/evict_log.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What is read is written again as it was. */
static int again(const struct evict_name *name, void *arg)
{
    evict_record_put(arg, name);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mcfs_buf once = MCFS_BUF_INIT, twice = MCFS_BUF_INIT;
    size_t fine = evict_records_read(data, size, again, &once);
    if (fine > size || evict_records_read(once.data, once.len, again, &twice) != once.len ||
        once.len != twice.len || (once.len && memcmp(once.data, twice.data, once.len) != 0))
        __builtin_trap();
    mcfs_buf_free(&once);
    mcfs_buf_free(&twice);
    return 0;
}
