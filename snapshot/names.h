/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_SNAPSHOT_NAMES_H
#define MCFS_SNAPSHOT_NAMES_H

#include "snapshot/snapshot.h"

#define SNAP_PATH_MAX 512 /* of a name in a store that names_check has let pass, NUL included */

/* Refuses clusters and ids that would not stay below the store's root; id may be NULL. */
int names_check(const char *cluster, const char *id, struct mcfs_error *err);

/* "<seq>|<view>|<created ms>", nothing else. */
bool descriptor_parse(const char *text, struct snap_info *info);

/* A small text file of a snapshot, or (id NULL) of the cluster's folder. */
int text_read(struct mcfs_object_store *store, const char *cluster, const char *id,
              const char *file, char *out, size_t cap, struct mcfs_error *err);

/* A whole small value. */
int value_write(struct mcfs_object_store *store, const char *path, struct mcfs_slice content,
                struct mcfs_error *err);

#endif
