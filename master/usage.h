/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_MASTER_USAGE_H
#define MCFS_MASTER_USAGE_H

#include "master/record.h"

/* Keeps others of the tenant (interned as `tenant`) from taking room, from usage_fits until what it
 * looked at has changed.  Without quotas nothing is locked. */
void usage_lock(struct directory *d, uint32_t tenant);
void usage_unlock(struct directory *d, uint32_t tenant);

/* Whether so many bytes more fit into the tenant's quota once `freed` bytes of it have gone. The
 * caller holds the lock.  TENANT_QUOTA_EXCEEDED, TENANT_NOT_REGISTERED. */
int usage_fits(struct directory *d, struct mcfs_slice name, uint32_t tenant, uint64_t bytes,
               uint64_t freed, struct mcfs_error *err);

/* Sets bytes aside for a put, if they fit; takes the lock. */
int usage_reserve(struct directory *d, struct mcfs_slice name, uint32_t tenant, uint64_t bytes,
                  struct mcfs_error *err);

/* Gives back what was set aside: the put has ended (and its object counts by itself) or is given
 * up. */
void usage_release(struct directory *d, uint32_t tenant, uint64_t bytes);

#endif
