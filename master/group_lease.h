/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_MASTER_GROUP_LEASE_H
#define MCFS_MASTER_GROUP_LEASE_H

/*
 * Leases on groups: whoever gets a lease on one object of a group has one on all of them, as the
 * blocks of a prompt are read together.  A group is here only while it is leased; which objects
 * belong to it stands with the objects.  Own lock, innermost.
 */

#include <mooncakefs/object.h>
#include <stdint.h>

struct group_leases;

struct group_leases *group_leases_new(void);
void group_leases_free(struct group_leases *t);

/* A node gets a lease of so long from now; several nodes are one LEASE_SEVERAL.  Without memory
 * the group has none, and each object its own. */
void group_lease_grant(struct group_leases *t, uint32_t tenant, struct mcfs_slice group,
                       uint32_t node, uint32_t ms);

/* Milliseconds that are left of the group's lease, and who holds it; 0: nobody. */
uint32_t group_lease_left_ms(struct group_leases *t, uint32_t tenant, struct mcfs_slice group,
                             uint32_t *holder);

/* Forgets what has ended. */
void group_lease_sweep(struct group_leases *t);

#endif
