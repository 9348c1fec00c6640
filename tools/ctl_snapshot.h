/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_TOOLS_CTL_SNAPSHOT_H
#define MCFS_TOOLS_CTL_SNAPSHOT_H

#include "snapshot/snapshot.h"
#include "tools/ctl.h"

/* Snapshots that a command is about: where they lie, or a master's. */
struct ctl_snapshots {
    struct snap_place place;
};

/* A word of the command line: an id, `latest`, or the place of a snapshot (a directory or s3://…);
 * NULL is the latest of --store or of the master. */
int ctl_snapshots_open(struct ctl *c, const char *word, struct ctl_snapshots *s,
                       struct mcfs_error *err);
void ctl_snapshots_close(struct ctl_snapshots *s);
/* The id that was meant, the latest unless the word said another. */
int ctl_snapshots_id(struct ctl_snapshots *s, char id[SNAP_ID_SIZE], struct mcfs_error *err);

/* A bar on a terminal's standard error; nothing elsewhere.  Matches the progress callbacks. */
void ctl_progress(uint64_t done, uint64_t all, void *arg);

int ctl_snapshot_show(struct ctl *c, int argc, char **argv, struct mcfs_error *err);
int ctl_snapshot_verify(struct ctl *c, int argc, char **argv, struct mcfs_error *err);
int ctl_snapshot_diff(struct ctl *c, int argc, char **argv, struct mcfs_error *err);

#endif
