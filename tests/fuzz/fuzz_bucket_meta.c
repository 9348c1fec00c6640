/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/bucket/bucket_meta.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void one(struct mcfs_slice key, const struct meta_place *place, void *arg)
{
    uint64_t *sum = arg;
    for (size_t i = 0; i < key.len; i++)
        *sum += (unsigned char)key.data[i];
    *sum += place->offset;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint64_t data_size, sum = 0;
    meta_parse(data, size, &data_size, one, &sum);
    return 0;
}
