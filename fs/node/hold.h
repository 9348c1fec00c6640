/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_FS_NODE_HOLD_H
#define MCFS_FS_NODE_HOLD_H

/*
 * An open file goes on reading what it opened, also when another node stores the bytes and the key
 * is replaced or removed meanwhile.  At first the lease sees to that: nothing leased goes before
 * its holder has been recalled.  When the lease nears its end, is recalled, or this node itself is
 * about to change the key, the node that stores the version is asked to hold it (HoldReplica), for
 * a minute at a time.  So most opens, which are short, cost no request more.
 *
 * hold.c is the reader's side, held.c the side of who stores the bytes.  A hold ends with the last
 * close, with the reader's death after a minute, or with a restart of who holds.
 *
 * All functions may be called from any thread.
 */

#include "fs/node/node_private.h"

/* ---- the reader's side ---- */

#define ENDPOINT_SIZE 160

/* Part of an open remote replica.  The owner fills in the first four and keeps them alive. */
struct hold {
    struct mcfs_slice tenant, key;
    uint64_t version;
    const struct mcfs_master_object *object; /* whose replicas can be asked */
    struct hold *prev, *next;
    int64_t due_ms; /* when something has to be done about it */
    uint64_t tried; /* round in which it was asked for last */
    bool held, busy;
    char endpoint[ENDPOINT_SIZE]; /* of who holds it */
};

struct holds *holds_new(struct node *n, struct mcfs_error *err);
void holds_free(struct holds *hs);

/* Covers an open replica that is leased for so long from now on. */
void hold_add(struct holds *hs, struct hold *h, uint32_t lease_ms);
void hold_remove(struct holds *hs, struct hold *h);

/* The lease was not granted, or was recalled before hold_add: has the version held at once.  False:
 * it is gone. */
bool hold_now(struct holds *hs, struct hold *h);

/* A key is about to be changed or its lease to be given back: what is open of it is held first. */
void hold_cover(struct holds *hs, struct mcfs_slice tenant, struct mcfs_slice key);
void hold_cover_all(struct holds *hs); /* all leases have ended */

/* ---- the side of who stores the bytes ---- */

struct held_set;
struct held;

struct held_set *held_set_new(struct node *n, struct mcfs_error *err);
void held_set_free(struct held_set *s);

/* Keeps a version for a holder (a node's id, "": this one) for so many milliseconds from now on, or
 * lets it go (0).  REPLICA_IS_GONE when it is neither stored nor held. */
int held_set_hold(struct held_set *s, struct mcfs_slice holder, struct mcfs_slice tenant,
                  struct mcfs_slice key, uint64_t version, uint64_t ms, struct mcfs_error *err);

/* A version that is held, and its reader; released by held_release.  NULL: it is not. */
struct held *held_find(struct held_set *s, struct mcfs_slice tenant, struct mcfs_slice key,
                       uint64_t version, struct replica_reader **reader);
void held_release(void *held);

/* Lets go of what is not asked for any more. */
void held_set_sweep(struct held_set *s);
/* While a version that this node stores gets another name, peers that have it open ask for it by
 * the old one still: between keep and done. */
void held_set_keep(struct held_set *s, struct mcfs_slice tenant, struct mcfs_slice key,
                   uint64_t version);
void held_set_done(struct held_set *s, struct mcfs_slice tenant, struct mcfs_slice key,
                   uint64_t version);
uint64_t held_set_count(struct held_set *s);

#endif
