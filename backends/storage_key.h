/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_BACKENDS_STORAGE_KEY_H
#define MCFS_BACKENDS_STORAGE_KEY_H

/* A storage key is tenant, 0x00, key.  That is Mooncake's rule for all of its layouts; before it
 * had tenants the key stood alone, and was what is the default tenant's today. */

#include "common/buf.h"
#include <mooncakefs/error.h>
#include <mooncakefs/object.h>

/* Appends tenant, 0x00 and key to buf; INVALID_KEY when they are too long or the tenant is none. */
int storage_key(struct mcfs_slice tenant, struct mcfs_slice key, struct mcfs_buf *buf,
                struct mcfs_error *err);

/* Whether it is tenant, 0x00, key with both of a length that we can name. */
bool storage_key_is_valid(struct mcfs_slice key);

/* Appends what stands on disk, with "default", 0x00 before it where there is no 0x00.  Returns
 * whether that was added. */
bool storage_key_complete(struct mcfs_slice on_disk, struct mcfs_buf *buf);

/* The parts of a valid storage key, borrowed from it. */
void storage_key_split(struct mcfs_slice key, struct mcfs_slice *tenant, struct mcfs_slice *name);

/* REPLICA_IS_GONE: a version of this key is not stored; returns -1. */
int storage_gone(struct mcfs_slice key, struct mcfs_error *err);

#endif
