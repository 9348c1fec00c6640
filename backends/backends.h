/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_BACKENDS_H
#define MCFS_BACKENDS_H

/* The node-local stores.  A new one is a folder beside these and a line in backends.c. */

#include <mooncakefs/backend.h>

/* The backend of a descriptor (as in MOONCAKE_OFFLOAD_STORAGE_BACKEND_DESCRIPTOR), or NULL. */
const struct mcfs_backend_ops *mcfs_backend_find(const char *descriptor);

extern const struct mcfs_backend_ops mcfs_bucket_ops;

#endif
