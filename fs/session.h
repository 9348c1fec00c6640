/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_FS_SESSION_H
#define MCFS_FS_SESSION_H

/* The life of a mount: from its options to its clean end. */

#include "fs/options.h"
#include <mooncakefs/error.h>

/* Mounts and serves until unmounted or told to stop.  `ready` is called once, when the kernel and
 * we have agreed and requests are served.  Returns 0 after a clean end, -1 with err otherwise
 * (nothing is left mounted). */
int session_run(struct mount_options *options, void (*ready)(void *arg), void *arg,
                struct mcfs_error *err);

/* Cleans a mount point that a killed daemon has left ("Transport endpoint is not connected").
 * Returns 1 when it did, 0 when there was nothing to clean, -1 with err. */
int session_clean_stale(const char *mountpoint, struct mcfs_error *err);

#endif
