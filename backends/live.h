/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_BACKENDS_LIVE_H
#define MCFS_BACKENDS_LIVE_H

/*
 * A store that is only looked at while its owner goes on writing.  It is read again when its files
 * have changed; who has a reader keeps what he opened.  The backend that is returned is of the
 * layout's name and can be used as any other.
 */

#include <mooncakefs/backend.h>

/* Opens config->dir (read_only) by a layout's own code. */
struct mcfs_backend *mcfs_backend_open_live(const struct mcfs_backend_ops *layout,
                                            const struct mcfs_backend_config *config,
                                            struct mcfs_backend_recovery *recovery,
                                            struct mcfs_error *err);

/* Looks every interval_ms whether the files have changed (less often when looking takes long), and
 * calls `changed`, from a thread of its own, when another state of the store is served. */
int mcfs_backend_watch(struct mcfs_backend *b, uint32_t interval_ms, void (*changed)(void *arg),
                       void *arg, struct mcfs_error *err);

/* Ends that; `changed` is not called any more.  Closing does it, too. */
void mcfs_backend_unwatch(struct mcfs_backend *b);

#endif
