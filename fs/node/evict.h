/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_FS_NODE_EVICT_H
#define MCFS_FS_NODE_EVICT_H

/*
 * Eviction of what this node stores: when its use passes the high watermark, or a put does not fit,
 * objects go in the order of the store's policy until the low watermark is reached.
 *
 * A pass is a walk over the store from its oldest object on, in batches.  For each batch
 * (evict_batch.c): the keys are locked against this node's own changes; its own caches, and the
 * kernel's, drop the objects; the store holds them back, so that no reader can be opened; they are
 * written down (evict_log.h); the master is asked; those that it has withdrawn are removed, the
 * others are as they were.  Readers that are open finish, and the bytes go after that.  What the
 * master cannot be asked about stays.
 *
 * All passes are made by one thread; a put that does not fit waits for it.
 *
 * All functions may be called from any thread.
 */

#include "fs/node/node_private.h"

struct evictor;

/* Opens the log; before the store's inventory is told to anybody. */
struct evictor *evictor_new(struct node *n, struct mcfs_error *err);

/* The first inventory has been told, and with it what the last process was evicting; from now on
 * there are passes, where a policy says so. */
int evictor_start(struct evictor *e, struct mcfs_error *err);

/* Ends a pass that is under way, and the thread; before the session ends. */
void evictor_stop(struct evictor *e);
void evictor_free(struct evictor *e);

/* Whether the last process was evicting this version when it died (mcfs_session_ops.leaving). */
bool evictor_leaving(struct evictor *e, const struct mcfs_object *o);

/* Around the walk over the store for an inventory: what the master had withdrawn before is removed
 * first, and what it has not is asked about again. */
void evictor_inventory_begin(struct evictor *e);
void evictor_inventory_end(struct evictor *e);

/* Puts one object into the store, evicting others when it does not fit.  0, or -1 with item->err:
 * NO_AVAILABLE_HANDLE when nothing that may go makes room for it. */
int evictor_put(struct evictor *e, struct mcfs_backend_put *item, const struct mcfs_cancel *cancel);

/* A version could not be opened: when it is held back by a batch, waits for its end.  True: it was,
 * so that it is worth another try. */
bool evictor_settle(struct evictor *e, uint64_t version);

#endif
