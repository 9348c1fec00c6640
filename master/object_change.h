/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_MASTER_OBJECT_CHANGE_H
#define MCFS_MASTER_OBJECT_CHANGE_H

#include "master/record.h"

/* Under the shard's lock: whether an object may be changed by `client` now.  Returns 0, or -1 with
 * OBJECT_HAS_LEASE after the holders have been asked to give their leases up. */
int change_must_wait(struct directory *d, uint32_t slot, uint32_t client, struct mcfs_error *err);

/* Under the shard's lock: the record gets the content of a put that started at a wall-clock time,
 * stored by p->client alone.  Returns 0, or -1 without memory and nothing changed. */
int object_publish(struct directory *d, struct record *r, const struct put_end *p,
                   int64_t started_ms);

#endif
