/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_FS_BEHIND_H
#define MCFS_FS_BEHIND_H

/*
 * Short writes that continue a long one while that is still being made.  The kernel cuts a write of
 * 1 MiB from a buffer that is not aligned into a long request and a short one, and the writer would
 * wait for the first with the second.  So the short one's bytes are kept, its writer goes on, and
 * the thread that makes the long one writes them after it, before it gives up the inode's lock.
 *
 * All functions may be called from any thread.
 */

#include "common/buf.h"

#include <pthread.h>
#include <stdint.h>

/* A long write under way; lies on the stack of the thread that makes it. */
struct behind_run {
    struct behind_run *next;
    const void *handle; /* that is written to */
    uint64_t end;       /* of what has been taken */
    struct mcfs_buf more;
};

struct behind {
    pthread_mutex_t lock; /* guards the runs */
    struct behind_run *runs;
};

void behind_init(struct behind *b);

/* A write that ends there has been acknowledged and is about to be made. */
void behind_begin(struct behind *b, struct behind_run *run, const void *handle, uint64_t end);

/* Takes a write that continues a run of the same handle; false: it does not, or is too long. */
bool behind_add(struct behind *b, const void *handle, const void *data, size_t len, uint64_t off);

/* Hands over what was taken since, where *off says; the caller frees it.  False: nothing, and the
 * run is over. */
bool behind_next(struct behind *b, struct behind_run *run, struct mcfs_buf *more, uint64_t *off);

#endif
