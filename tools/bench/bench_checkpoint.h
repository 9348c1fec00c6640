/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_TOOLS_BENCH_CHECKPOINT_H
#define MCFS_TOOLS_BENCH_CHECKPOINT_H

/* A checkpoint by a real master that has restored a snapshot and does nothing else. */

#include "snapshot/snapshot.h"

struct bench_checkpoint {
    char id[32];          /* of the snapshot that was taken; the caller deletes it */
    double restart_s;     /* from the master's start to its first answer, restore included */
    double checkpoint_s;  /* from the request to its end */
    uint64_t master_kib;  /* resident in the master before the fork */
    uint64_t private_kib; /* most that its child had of its own: all that it shares with the master
                             left out, and nothing was copied on write, as nobody wrote */
};

/* `dir` is a local store whose cluster's latest snapshot has so many objects.  The master is ended
 * before this returns, 0 or -1. */
int bench_checkpoint(const char *dir, const char *cluster, uint64_t keys,
                     struct bench_checkpoint *out, struct mcfs_error *err);

#endif
