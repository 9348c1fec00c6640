/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_FS_NODE_KNOWN_H
#define MCFS_FS_NODE_KNOWN_H

/*
 * Objects that the master has described before anybody asked, and on which this node holds a lease:
 * a look-up of one of them costs no request.
 *
 * A look-up that has to ask the master takes along what stands behind the object in its directory,
 * as read-ahead does with pages: names that were written one after the other are looked up one
 * after the other (the blocks of a prompt, a listing with attributes).  How many is learned for
 * each directory: more while they are used, none when they are not.
 *
 * What is here may be served until its lease ends.  A recall, the session's loss and every change
 * by this node take entries out.  An answer that was under way meanwhile is not taken in: that is
 * what the marks are for.
 *
 * All functions may be called from any thread.
 */

#include "fs/node/node.h"

struct known;

struct known *known_new(void);
void known_free(struct known *k);

/* Finds a described object whose lease lasts. */
bool known_find(struct known *k, struct mcfs_slice tenant, struct mcfs_slice key,
                struct mcfs_master_object *out, struct node_lease *lease);

/* How many neighbours to take along with a look-up in this directory ("" or ending in '/'). */
uint32_t known_ahead(struct known *k, struct mcfs_slice tenant, struct mcfs_slice dir);

/* State before the master is asked. */
#define KNOWN_STRIPES 64
struct known_mark {
    int64_t asked_ms;
    uint64_t changes[KNOWN_STRIPES];
};
void known_begin(struct known *k, struct known_mark *mark);

/* The lease that an answer asked for after the mark grants on a key. */
struct node_lease known_lease(struct known *k, const struct known_mark *mark,
                              struct mcfs_slice tenant, struct mcfs_slice key, uint32_t lease_ms);

/* See node_lease_holds. */
bool known_lease_holds(struct known *k, struct mcfs_slice tenant, struct mcfs_slice key,
                       const struct node_lease *lease);

/* Takes in a neighbour that an answer described. */
void known_add(struct known *k, const struct known_mark *mark, struct mcfs_slice tenant,
               struct mcfs_slice dir, const struct mcfs_master_neighbour *n);

/* Between block and unblock nothing is said to be leased of the key (and of those that share its
 * stripe), nor taken in; what is here of it is forgotten.  Blocks count. */
void known_block(struct known *k, struct mcfs_slice tenant, struct mcfs_slice key);
void known_unblock(struct known *k, struct mcfs_slice tenant, struct mcfs_slice key);

void known_forget(struct known *k, struct mcfs_slice tenant, struct mcfs_slice key);
void known_forget_all(struct known *k);

/* Look-ups that were answered from here. */
uint64_t known_hits(struct known *k);

#endif
