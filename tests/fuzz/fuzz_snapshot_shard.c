/* SPDX-License-Identifier: Apache-2.0 */
#include "snapshot/frame.h"
#include "snapshot/snapshot.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int one(const struct snap_object *o, void *arg, struct mcfs_error *err)
{
    (void)err;
    *(uint64_t *)arg += o->size + o->replica_count;
    return 0;
}

/* The input as a decompressed shard, as one whose second half is the extra file's, and as a zstd
 * frame. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint64_t sum = 0;
    struct mcfs_buf out = MCFS_BUF_INIT;
    struct mcfs_error err;
    snap_decode_shard(mcfs_slice(data, size), mcfs_slice("", 0), one, &sum, &err);
    snap_decode_shard(mcfs_slice(data, size / 2), mcfs_slice(data + size / 2, size - size / 2), one,
                      &sum, &err);
    frame_unpack(mcfs_slice(data, size), &out, &err);
    mcfs_buf_free(&out);
    return 0;
}
