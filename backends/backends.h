/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_BACKENDS_H
#define MCFS_BACKENDS_H

/* The node-local stores.  A new one is a folder beside these and a line in backends.c. */

#include <mooncakefs/backend.h>

/* The backend of a descriptor (as in MOONCAKE_OFFLOAD_STORAGE_BACKEND_DESCRIPTOR), or NULL. */
const struct mcfs_backend_ops *mcfs_backend_find(const char *descriptor);

/* The backend whose files lie in a directory; fsdir as in struct mcfs_backend_config.  NULL:
 * FILE_NOT_FOUND when there are none of any, INVALID_PARAMS when there are of several. */
const struct mcfs_backend_ops *mcfs_backend_recognise(const char *dir, const char *fsdir,
                                                      struct mcfs_error *err);

/* Whether a directory can be opened for writing by a backend: it is not there yet, or holds no
 * files of another's.  0, or -1 with INVALID_PARAMS. */
int mcfs_backend_fits(const struct mcfs_backend_ops *ops, const struct mcfs_backend_config *config,
                      struct mcfs_error *err);

/* The store's own directory for what a user names: dir itself, or dir/backend when dir is a node's
 * state directory.  Absolute and malloc'ed; NULL when there is no such directory. */
char *mcfs_backend_dir(const char *dir, struct mcfs_error *err);

extern const struct mcfs_backend_ops mcfs_bucket_ops;
extern const struct mcfs_backend_ops mcfs_offset_ops;
extern const struct mcfs_backend_ops mcfs_file_per_key_ops;

#endif
