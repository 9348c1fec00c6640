/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_SNAPSHOT_SEGMENTS_H
#define MCFS_SNAPSHOT_SEGMENTS_H

#include "snapshot/snapshot.h"

#define MCFS_ALLOC_NODES_MAX (1u << 24)

static inline bool is_node_or_none(const struct snap_allocator *a, uint32_t index)
{
    return index < a->state.current_capacity || index == MCFS_ALLOC_NONE;
}

#endif
