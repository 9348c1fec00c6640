/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_MASTER_RESTORING_H
#define MCFS_MASTER_RESTORING_H

/*
 * What a master says while it restores.  A snapshot is taken whole or not at all, and a damaged
 * shard may be the last one: so nothing that a restore has put in is shown before its end. Requests
 * that come meanwhile wait, as short restores are over soon; when a restore takes longer they are
 * told so (UNAVAILABLE_IN_CURRENT_STATUS), with how far it is, and clients come again.
 *
 * One thread begins and ends; any thread may ask.
 */

#include "master/checkpoint.h"

#include <stdatomic.h>

struct restoring;

/* log: a line now and then; a bar on the terminal where stderr is one. */
struct restoring *restoring_new(struct mcfs_error *err);
void restoring_free(struct restoring *r);

/* For restore_newest. */
const struct restore_watch *restoring_watch(struct restoring *r);

/* The restore is over, or there is none to be done; who waits goes on. */
void restoring_end(struct restoring *r);

/* Whether a SIGTERM or SIGINT, which every thread blocks, was seen to be waiting and has ended the
 * restore. */
bool restoring_was_stopped(struct restoring *r);

/* Whether restoring_end was called. */
bool restoring_is_over(struct restoring *r);

/* Waits for the end, but never longer than a few seconds from the start of the restore; returns 0,
 * or -1 and says how far it is. */
int restoring_wait(struct restoring *r, struct mcfs_error *err);

/* The same without waiting. */
int restoring_check(struct restoring *r, struct mcfs_error *err);

/* Shards done and altogether of the snapshot that is being tried; 0 of 0 before it is open. */
void restoring_figures(struct restoring *r, uint64_t *done, uint64_t *all);

#endif
