/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_SNAPSHOT_AHEAD_H
#define MCFS_SNAPSHOT_AHEAD_H

/*
 * Reading from a store that is far away: shards lie side by side and are asked for in turn, so what
 * is fetched is whole blocks, each once, shared by the threads that decode.  Any thread.
 */

#include "common/buf.h"
#include <mooncakefs/error.h>
#include <mooncakefs/object_store.h>

struct ahead;

/* NULL where the store is near, or without memory: then it is read as it is. */
struct ahead *ahead_new(struct mcfs_object_store *store);
void ahead_free(struct ahead *a);

/* Appends len bytes at off of a file, told from others by `file`; fewer are an error.  name is for
 * errors. */
int ahead_read(struct ahead *a, int file, const char *path, const char *name, uint64_t off,
               uint64_t len, struct mcfs_buf *out, struct mcfs_error *err);

#endif
