/* SPDX-License-Identifier: Apache-2.0 */
/* The decompressed files `segments` and `task_manager`, the array of discarded replicas, and
 * payloads of replicas: what is decoded encodes to something that decodes to the same. */
#include "snapshot/snapshot.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct mcfs_slice bytes(const struct mcfs_buf *b)
{
    return mcfs_slice(b->data, b->len);
}

static void segments(struct mcfs_slice in)
{
    struct mcfs_error err;
    struct mcfs_buf once = MCFS_BUF_INIT, twice = MCFS_BUF_INIT;
    struct snap_segments *s = snap_segments_decode(in, &err), *again;
    if (!s)
        return;
    for (uint32_t i = 0; i < s->segment_count; i++) {
        struct mcfs_alloc_node *nodes;
        uint32_t *free_nodes;
        if (!s->segments[i].allocator ||
            s->segments[i].allocator->state.current_capacity > 1u << 16)
            continue;
        snap_allocator_unpack(s->segments[i].allocator, &nodes, &free_nodes, &err);
        free(nodes);
        free(free_nodes);
    }
    if (snap_segments_encode(s, &once, &err))
        abort();
    again = snap_segments_decode(bytes(&once), &err);
    if (!again || snap_segments_encode(again, &twice, &err) ||
        !mcfs_slice_eq(bytes(&once), bytes(&twice)))
        abort();
    snap_segments_free(again);
    snap_segments_free(s);
    mcfs_buf_free(&once);
    mcfs_buf_free(&twice);
}

static int one_task(const struct snap_task *t, void *arg, struct mcfs_error *err)
{
    (void)err;
    struct mcfs_buf b = MCFS_BUF_INIT;
    snap_tasks_encode(t, 1, &b);
    *(size_t *)arg += b.len;
    mcfs_buf_free(&b);
    return 0;
}

static int one_discarded(const struct snap_discarded *d, void *arg, struct mcfs_error *err)
{
    (void)err;
    struct mcfs_buf b = MCFS_BUF_INIT;
    snap_discarded_encode(d, 1, &b);
    *(size_t *)arg += b.len;
    mcfs_buf_free(&b);
    return 0;
}

static void payloads(struct mcfs_slice in)
{
    struct snap_memory m, m2;
    struct snap_disk d, d2;
    struct snap_dfs f, f2;
    struct mcfs_buf b = MCFS_BUF_INIT;
    if (snap_memory_decode(in, &m)) {
        snap_memory_encode(&m, &b);
        if (!snap_memory_decode(bytes(&b), &m2) || m2.address != m.address)
            abort();
    }
    mcfs_buf_reset(&b);
    if (snap_disk_decode(in, &d)) {
        snap_disk_encode(&d, &b);
        if (!snap_disk_decode(bytes(&b), &d2) || !mcfs_slice_eq(d.path, d2.path))
            abort();
    }
    mcfs_buf_reset(&b);
    if (snap_dfs_decode(in, &f)) {
        snap_dfs_encode(&f, &b);
        if (!snap_dfs_decode(bytes(&b), &f2) || f.shard != f2.shard)
            abort();
    }
    mcfs_buf_free(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mcfs_slice in = mcfs_slice(data, size);
    struct mcfs_error err;
    size_t sum = 0;
    segments(in);
    snap_tasks_decode(in, one_task, &sum, &err);
    snap_discarded_decode(in, one_discarded, &sum, &err);
    payloads(in);
    return 0;
}
