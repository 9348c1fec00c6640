/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_MASTER_TREE_H
#define MCFS_MASTER_TREE_H

/*
 * The directories that keys with '/' imply, so that listing one visits its children only.
 *
 * A directory is named by its parent and one component (raw bytes; an empty component is one too).
 * Its children (objects and directories) stand in an array; a child's place never changes while it
 * is there, and holes are used again.  So a listing that resumes at a place (the cookie) sees every
 * child that was there throughout exactly once, whatever comes and goes meanwhile.
 *
 * One lock guards the tree; it nests inside a shard's lock and is held for one insertion, removal
 * or batch of a listing.  Directories vanish with their last child.  Cost of a directory: about 60
 * bytes and its name; of a child 4 bytes in its parent's array (a power of two, so up to twice
 * that) beside its own record.
 */

#include "common/arena.h"
#include <mooncakefs/object.h>
#include <stdbool.h>
#include <stdint.h>

struct tree;

/* A child as stored: an object's slot, or a directory's block with the top bit set. */
#define TREE_CHILD_DIR 0x80000000u

struct tree *tree_new(struct mcfs_error *err);
void tree_free(struct tree *t);

void tree_lock(struct tree *t);
void tree_unlock(struct tree *t);

/* All functions below: the caller holds the lock.  Directories are named by nonzero numbers. */

/* The root of a tenant's names (tenant's number), made when absent. */
uint32_t tree_root(struct tree *t, uint32_t tenant);

/* The directory of a path: the components of `path` that end in '/' (so "a/b/" and "a/b/c" both
 * name a/b). Returns 0 when it is not there, or (make) when memory is short. */
uint32_t tree_dir(struct tree *t, uint32_t tenant, struct mcfs_slice path, bool make);

/* The directory `name` in `parent`, or 0. */
uint32_t tree_subdir(struct tree *t, uint32_t parent, struct mcfs_slice name);

/* Puts an object's slot under a directory at time now_ns; returns its place, UINT32_MAX without
 * memory. */
uint32_t tree_add(struct tree *t, uint32_t dir, uint32_t slot, int64_t now_ns);

/* Takes the child at a place out; directories left empty go too. */
void tree_del(struct tree *t, uint32_t dir, uint32_t place, int64_t now_ns);

/* Drops directories without children up from `dir` (after tree_dir with make and a failed add). */
void tree_prune(struct tree *t, uint32_t dir);

/* Whether any child is a directory. */
bool tree_has_subdirs(struct tree *t, uint32_t dir);

/* The child at a place, 0 when there is none. */
uint32_t tree_peek(struct tree *t, uint32_t dir, uint32_t place);

/* The next child at or after *place; 0 at the end.  *place moves behind it. */
uint32_t tree_next(struct tree *t, uint32_t dir, uint32_t *place);

struct mcfs_slice tree_name(struct tree *t, uint32_t dir);
int64_t tree_mtime_ns(struct tree *t, uint32_t dir);
uint32_t tree_children(struct tree *t, uint32_t dir);

/* Directories there are. */
uint64_t tree_count(struct tree *t);

#endif
