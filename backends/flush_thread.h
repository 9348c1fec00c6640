/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_BACKENDS_FLUSH_THREAD_H
#define MCFS_BACKENDS_FLUSH_THREAD_H

/* The thread of a store that flushes every few seconds what was put without a sync. */

#include <mooncakefs/error.h>

struct flush_thread;

/* Calls flush(arg) every ms (0: 5000) while has_work(arg).  A failure is logged once until it works
 * again.  NULL when the thread cannot be started. */
struct flush_thread *flush_thread_start(uint32_t ms, bool (*has_work)(void *arg),
                                        int (*flush)(void *arg, struct mcfs_error *err), void *arg,
                                        struct mcfs_error *err);

/* Waits for the end of a flush that is under way and frees it; NULL is fine. */
void flush_thread_stop(struct flush_thread *t);

#endif
