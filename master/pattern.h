/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_MASTER_PATTERN_H
#define MCFS_MASTER_PATTERN_H

/*
 * Regular expressions over keys, as callers send them: extended syntax (PCRE2, of which POSIX
 * extended expressions are the common part), found anywhere in the key unless anchored; bytes, not
 * characters.  A pattern may cost a bounded number of steps for a key and a bounded time in all, so
 * that no pattern holds up the master.  One thread.
 */

#include <mooncakefs/error.h>
#include <mooncakefs/object.h>

#define PATTERN_MAX 256 /* bytes */

struct pattern;

/* INVALID_PARAMS saying what is wrong where; the caller frees with pattern_free. */
struct pattern *pattern_new(struct mcfs_slice text, struct mcfs_error *err);
void pattern_free(struct pattern *p);

/* 1: found, 0: not, -1: INVALID_PARAMS, it costs too much. */
int pattern_match(struct pattern *p, struct mcfs_slice key, struct mcfs_error *err);

#endif
