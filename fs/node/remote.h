/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_FS_NODE_REMOTE_H
#define MCFS_FS_NODE_REMOTE_H

/*
 * Reading an object that peers store.
 *
 * Who reads on has the rest of the object (or much of it) sent in one answer, and takes it off the
 * connection as he needs it.  Nothing is kept in this process: what was not taken yet is the
 * sender's file and what the socket holds.  Such connections are few (STREAMS_MAX) and not left
 * unused for long: the one that has not been read from for longest goes, and whoever needed it
 * asks anew.
 *
 * All functions may be called from any thread.
 */

#include "fs/node/node_private.h"

struct remote;

/* An object that the master has just described. */
struct remote *remote_open(struct node *n, struct mcfs_slice tenant, struct mcfs_slice key,
                           const struct mcfs_master_object *object, struct mcfs_error *err);
void remote_close(struct remote *m); /* NULL: nothing */

/* Reads up to len bytes, fewer only at the object's end; the count or -1. */
int64_t remote_read(struct remote *m, void *buf, size_t len, uint64_t off,
                    const struct mcfs_cancel *cancel, struct mcfs_error *err);

/* Its lease was not granted or is gone: has a peer hold the version (hold.h).  False: it is gone.
 */
bool remote_hold(struct remote *m);

struct streams *streams_new(void); /* NULL without memory */
void streams_free(struct streams *s);

/* Ends those that have not been read from for some seconds. */
void streams_sweep(struct streams *s);

#endif
