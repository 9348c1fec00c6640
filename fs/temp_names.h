/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_FS_TEMP_NAMES_H
#define MCFS_FS_TEMP_NAMES_H

/*
 * Names that programs use only to rename them (write to x.tmp, rename to x).  They are no objects:
 * they live in the staging directory, private to this mount, until a rename publishes them without
 * another copy.  Once closed they survive a restart: the file's label (staging_area.h) holds name
 * and attributes.  One that nobody has touched for a day is dropped.
 */

#include "fs/inode.h"

struct temp_names;
struct staging_area;

/* patterns: further ones, separated by ':', or NULL. */
struct temp_names *temp_names_new(struct inode_table *inodes, struct staging_area *area,
                                  uint64_t memory_max, const char *patterns);
void temp_names_free(struct temp_names *t);

/* Finds again what an earlier daemon left, and removes unfinished writes. */
int temp_names_recover(struct temp_names *t, struct mcfs_error *err);

/* Whether the last component of a path is a temporary name. */
bool temp_names_match(const struct temp_names *t, struct mcfs_slice key);

/* The inode of a temporary name, daemon reference raised; NULL when there is none. */
struct inode *temp_names_find(struct temp_names *t, struct mcfs_slice tenant,
                              struct mcfs_slice key);

/* A new, empty one, daemon reference raised; what had the name is dropped. */
struct inode *temp_names_create(struct temp_names *t, struct mcfs_slice tenant,
                                struct mcfs_slice key, const struct mcfs_attr *attr,
                                struct mcfs_error *err);

/* It was closed: from now on it survives a restart.  The caller holds the inode's lock. */
int temp_names_keep(struct temp_names *t, struct inode *inode, struct mcfs_error *err);

/* The same, and it survives power loss, under this name or the one that a rename publishes it
 * under. */
int temp_names_sync(struct temp_names *t, struct inode *inode, struct mcfs_error *err);

/* The object's inode, which the kernel has a name for, goes on as a temporary name in the place of
 * one that was just made for its content.  False: it cannot, and the name has to be looked up. */
bool temp_names_take_over(struct temp_names *t, struct inode *temp, struct inode *object);

/* Gives it another temporary name. */
int temp_names_rename(struct temp_names *t, struct inode *inode, struct mcfs_slice key,
                      struct mcfs_error *err);

/* Drops the name; the content stays for those who have it open. */
void temp_names_drop(struct temp_names *t, struct inode *inode);

/* It is an object now and no temporary name any more; its file has been used up. */
void temp_names_forget(struct temp_names *t, struct inode *inode);

/* Calls fn with the raw last component of each directly below a prefix. */
void temp_names_children(struct temp_names *t, struct mcfs_slice tenant, struct mcfs_slice prefix,
                         void (*fn)(struct mcfs_slice name, struct inode *inode, void *arg),
                         void *arg);

/* Drops those that are older than a day. */
void temp_names_expire(struct temp_names *t);

#endif
