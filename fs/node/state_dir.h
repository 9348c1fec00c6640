/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_FS_NODE_STATE_DIR_H
#define MCFS_FS_NODE_STATE_DIR_H

/*
 * The directory in which a node keeps what must survive it:
 *
 *   format     "mooncakefs state 1": refused when the number is greater than ours
 *   lock       held by the owner, with its pid
 *   node_id    the node's stable id
 *   backend/   the store           staging/   objects being written, temporary names
 *   snapshots/ of the node's own master, with master.sock, master.log, master_nodes
 */

#include <mooncakefs/error.h>
#include <mooncakefs/object.h>

#define STATE_FORMAT 1

struct state_dir {
    char *path;
    int lock_fd;
    struct mcfs_id node_id;
};

/* Makes or opens it, and takes its lock; FILE_LOCK_FAIL names the pid of the owner. */
int state_dir_open(struct state_dir *s, const char *path, struct mcfs_error *err);
void state_dir_close(struct state_dir *s);

/* Path of an entry; malloc'ed, never NULL (aborts without memory: only at start). */
char *state_dir_path(const struct state_dir *s, const char *entry);

/* The directory used when none was named. */
char *state_dir_default(void);

#endif
