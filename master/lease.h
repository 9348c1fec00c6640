/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_MASTER_LEASE_H
#define MCFS_MASTER_LEASE_H

/*
 * Read leases, by record slot, in a dense shared mapping apart from the records: 8 bytes that every
 * read may change.  A lease says until when some mount may serve an object from the kernel's
 * caches, and who: nobody, one node, or several.
 *
 * A change that meets a lease of others starts a recall; while it runs no new lease is granted on
 * the object (reads go on, uncached).  A recall ends when every node that was asked has answered,
 * or with the lease.
 *
 * All functions: the caller holds the shard lock of the object, except where noted.
 */

#include <mooncakefs/error.h>
#include <stdbool.h>
#include <stdint.h>

#define LEASE_SEVERAL 0xffffu

struct lease_table;

struct lease_table *lease_table_new(uint32_t slots, struct mcfs_error *err);
void lease_table_free(struct lease_table *t);

/* The time, for lease_grant: read once for a batch. */
uint32_t lease_now(const struct lease_table *t);

/* Extends the slot's lease to now + ms for the node; returns the ms granted, 0 while a recall runs
 * and shortly afterwards, when whoever waits for it asks again. */
uint32_t lease_grant(struct lease_table *t, uint32_t slot, uint32_t node, uint32_t ms,
                     uint32_t now);

/* Counts leases that have been granted; any thread, no lock. */
void lease_count_granted(struct lease_table *t, uint32_t n);

/* Brings the cache line of the slot's lease; no lock. */
void lease_prefetch(const struct lease_table *t, uint32_t slot);

/* Milliseconds that a lease of anybody but `node` still lasts; 0 when there is none. */
uint32_t lease_held_by_others(struct lease_table *t, uint32_t slot, uint32_t node);

/* The holder: 0 nobody (or it has ended), a node's number, or LEASE_SEVERAL. */
uint32_t lease_holder(struct lease_table *t, uint32_t slot);

/* Wall-clock deadline in ms, 0 when there never was one; takes no lock (for the checkpoint's
 * child). */
int64_t lease_deadline_wall_ms(struct lease_table *t, uint32_t slot);

/* The group's lease is one on the slot as well, unless the object has been recalled and given back
 * since it was last looked up, or is being recalled. */
void lease_from_group(struct lease_table *t, uint32_t slot, uint32_t holder, uint32_t ms);

/* Marks a recall as running.  Returns true when it is a new one and the holders have to be asked.
 */
bool lease_recall_begin(struct lease_table *t, uint32_t slot);

/* One node was asked; a recall of several nodes waits for all of these. */
void lease_recall_expect(struct lease_table *t, uint32_t slot, uint32_t node);

/* A node gives its lease up. */
void lease_returned(struct lease_table *t, uint32_t slot, uint32_t node);

/* The slot is another object's from now on. */
void lease_forget(struct lease_table *t, uint32_t slot);

uint64_t lease_granted_count(const struct lease_table *t);
uint64_t lease_recall_count(const struct lease_table *t);

#endif
