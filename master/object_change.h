/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_MASTER_OBJECT_CHANGE_H
#define MCFS_MASTER_OBJECT_CHANGE_H

#include "master/record.h"

/* Under the shard's lock: whether an object may be changed by `client` now.  Returns 0, or -1 with
 * OBJECT_HAS_LEASE after the holders have been asked to give their leases up. */
int change_must_wait(struct directory *d, uint32_t slot, uint32_t client, struct mcfs_error *err);

/* Milliseconds for which somebody may hold a lease that an earlier master gave; 0: nobody. */
uint32_t old_lease_left_ms(struct directory *d, const struct record *r);

struct pending_put;

/* Under the shard's lock: the record gets the content of a put that started at a wall-clock time,
 * stored by p->client alone, or in the memory replicas that `group` has.  group: the block that
 * names the object's group (record_new_group, put_space_block) or 0; taken over in any case.
 * Returns 0, or -1 without memory and nothing changed. */
int object_publish(struct directory *d, struct record *r, const struct put_end *p,
                   int64_t started_ms, uint32_t group);

/* The put has ended or is given up: what was set aside for it is free. */
void object_forget_put(struct directory *d, const struct pending_put *put);

#endif
