/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_SNAPSHOT_REPOSITORY_H
#define MCFS_SNAPSHOT_REPOSITORY_H

#include "snapshot/names.h"

/* Everything with a snapshot's id, published or not, newest first; malloc'ed. */
struct repo_item {
    struct snap_entry entry;
    int64_t newest_ns; /* when any of its files was last written */
    bool has_descriptor;
};
int repo_items(struct mcfs_object_store *store, const char *cluster, struct repo_item **items,
               size_t *count, struct mcfs_error *err);

#endif
