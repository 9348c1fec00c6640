/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_FS_NODE_SUPERVISOR_H
#define MCFS_FS_NODE_SUPERVISOR_H

/* A standalone node's own master: started on a Unix socket below the state directory, started again
 * when it dies, stopped with the node.  It ends by itself when the node is killed. */

#include "fs/node/state_dir.h"

struct supervisor;

/* Starts the master and returns at once; *address (owned by the supervisor) is where it will
 * listen. */
struct supervisor *supervisor_start(const struct state_dir *state, const char *const *flags,
                                    const char **address, struct mcfs_error *err);
void supervisor_stop(struct supervisor *s);

/* Process id of the master that runs now, 0 between two. */
int supervisor_pid(struct supervisor *s);

/* Why the last one ended: the last line it wrote, for the error of a start that failed. */
void supervisor_last_words(struct supervisor *s, char *text, size_t cap);

#endif
