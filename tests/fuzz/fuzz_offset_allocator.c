/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A state of the offset allocator from elsewhere, and what is done with it then: whatever restore
 * takes must go on being a state that it takes.  Input: a byte of nodes, free_offset, then the
 * numbers of struct mcfs_alloc_state and of its nodes as they lie in memory; what is too short is
 * 0.
 */
#include "common/offset_allocator.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define NODES 64

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void take(const uint8_t **data, size_t *size, void *to, size_t len)
{
    size_t n = len < *size ? len : *size;
    memcpy(to, *data, n);
    *data += n;
    *size -= n;
}

static void work(struct mcfs_offset_allocator *a)
{
    struct mcfs_alloc_range r[8];
    bool have[8];
    for (unsigned i = 0; i < 8; i++)
        have[i] = i % 2 ? mcfs_offset_allocate(a, 1u << i * 2, &r[i])
                        : mcfs_offset_reserve(a, i * 64, 64, &r[i]);
    for (unsigned i = 0; i < 8; i += 2)
        if (have[i] && !mcfs_offset_release(a, r[i].node, 64))
            abort();
    for (uint32_t i = 0; i < NODES; i++)
        mcfs_offset_release(a, i, i);
    mcfs_offset_largest_free(a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mcfs_alloc_state s = {0};
    struct mcfs_alloc_node nodes[NODES] = {0};
    uint32_t free_nodes[NODES] = {0};
    uint8_t head[2] = {0};
    take(&data, &size, head, sizeof(head));
    take(&data, &size, free_nodes, sizeof(free_nodes));
    for (unsigned i = 0; i < head[0] % (NODES + 1); i++) {
        take(&data, &size, &nodes[i], 6 * sizeof(uint32_t));
        uint8_t used = 0;
        take(&data, &size, &used, 1);
        nodes[i].used = used & 1;
    }
    take(&data, &size, &s, offsetof(struct mcfs_alloc_state, nodes));
    s.current_capacity = head[0] % (NODES + 1);
    s.free_offset = head[1];
    s.nodes = nodes;
    s.free_nodes = free_nodes;
    struct mcfs_offset_allocator *a = mcfs_offset_allocator_restore(&s, NULL);
    if (a) {
        work(a);
        struct mcfs_offset_allocator *b =
            mcfs_offset_allocator_restore(mcfs_offset_allocator_state(a), NULL);
        if (!b)
            abort();
        mcfs_offset_allocator_free(b);
    }
    mcfs_offset_allocator_free(a);
    return 0;
}
