/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_MASTER_LATENCY_H
#define MCFS_MASTER_LATENCY_H

/*
 * How long RPC methods take, as a histogram for each.  Every thread counts for itself, so that
 * counting costs no shared cache line; who reads adds the threads up.
 */

#include "common/buf.h"

#define LATENCY_METHODS_MAX 64

/* One request of a method (a number below LATENCY_METHODS_MAX) took so long.  Any thread; without
 * memory for a thread's counters it counts nothing. */
void latency_note(unsigned method, int64_t ns);

/* Appends mooncakefs_rpc_duration_seconds in Prometheus' text format, for those of the methods that
 * have been called; names by number. */
void latency_metrics(const char *(*name)(unsigned method), unsigned count, struct mcfs_buf *out);

#endif
