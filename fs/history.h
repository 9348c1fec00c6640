/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_FS_HISTORY_H
#define MCFS_FS_HISTORY_H

/*
 * history/<id>/<tenant>/...: the directory as it stood at a snapshot.  Looking and listing need the
 * snapshot alone; bytes are served while a replica holds the same version.
 */

#include "fs/fs.h"
#include "fs/handle.h"

struct history;

/* dir: where indexes are kept; copied.  Used with fs->node's master once that is there. */
struct history *history_new(const char *dir);
void history_free(struct history *h);

/* The same as view_lookup and view_list, for directories of INODE_HISTORY* kinds. */
int history_lookup(struct fs *fs, struct inode *parent, const char *name,
                   const struct mcfs_cancel *cancel, struct fuse_entry_param *e,
                   struct mcfs_error *err);
int history_list(struct fs *fs, struct inode *dir,
                 void (*emit)(const char *name, enum inode_kind kind, uint64_t size,
                              int64_t mtime_ns, void *arg),
                 void *arg, const struct mcfs_cancel *cancel, struct mcfs_error *err);

/* Opens the bytes of an INODE_HISTORY_FILE; ENODATA when no replica holds that version any more. */
struct replica_reader *history_open(struct fs *fs, const struct inode *inode,
                                    const struct mcfs_cancel *cancel, struct mcfs_error *err);

/* The value of user.mooncake.<name> as the snapshot has it; ENODATA for what it does not know. */
int history_xattr(struct fs *fs, const struct inode *inode, const char *name,
                  const struct mcfs_cancel *cancel, struct mcfs_buf *out, struct mcfs_error *err);

#endif
