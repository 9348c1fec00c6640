/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_FS_LOCAL_DIRS_H
#define MCFS_FS_LOCAL_DIRS_H

/*
 * Directories of this mount that no key implies: made by mkdir, or left by removing the last key
 * below them (rm -r and rsync expect a directory to be there until they remove it).  Also the
 * attributes that were set on any directory. A directory is named by its prefix ("a/b/").
 *
 * With a log (dir_log.h) all of it is there again after a restart.  What changes by itself (an
 * mtime, because an entry came or went) is written by local_dirs_flush, everything else at once; a
 * log that cannot be written is a warning, and the directory is kept until the end of the process.
 */

#include <mooncakefs/error.h>
#include <mooncakefs/object.h>

struct local_dirs;

struct local_dirs *local_dirs_new(void);
void local_dirs_free(struct local_dirs *d);

/* Reads a log and writes changes to it from now on. */
int local_dirs_open_log(struct local_dirs *d, const char *path, struct mcfs_error *err);

/* Writes what has changed by itself, and the log anew when most of it is outdated. */
void local_dirs_flush(struct local_dirs *d);

/* Keeps a directory (attr NULL: attributes as they are); 0 or -1 without memory. */
int local_dirs_keep(struct local_dirs *d, struct mcfs_slice tenant, struct mcfs_slice prefix,
                    const struct mcfs_attr *attr);

/* Remembers attributes without keeping the directory. */
int local_dirs_set_attr(struct local_dirs *d, struct mcfs_slice tenant, struct mcfs_slice prefix,
                        const struct mcfs_attr *attr);

/* Whether it is kept; *attr (may be NULL) gets its attributes when *has_attr. */
bool local_dirs_get(struct local_dirs *d, struct mcfs_slice tenant, struct mcfs_slice prefix,
                    struct mcfs_attr *attr, bool *has_attr);

/* Forgets it. */
void local_dirs_drop(struct local_dirs *d, struct mcfs_slice tenant, struct mcfs_slice prefix);

/* Changes the mtime, as a change of its entries does. */
void local_dirs_touch(struct local_dirs *d, struct mcfs_slice tenant, struct mcfs_slice prefix,
                      int64_t now_ns);

/* Calls fn with the raw last component of every kept directory directly below a prefix.  fn must
 * not call back. */
void local_dirs_children(struct local_dirs *d, struct mcfs_slice tenant, struct mcfs_slice prefix,
                         void (*fn)(struct mcfs_slice name, const struct mcfs_attr *attr,
                                    void *arg),
                         void *arg);

/* Whether a kept directory lies below. */
bool local_dirs_has_children(struct local_dirs *d, struct mcfs_slice tenant,
                             struct mcfs_slice prefix);

#endif
