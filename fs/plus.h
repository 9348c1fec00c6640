/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_FS_PLUS_H
#define MCFS_FS_PLUS_H

/*
 * Listings that bring attributes along (READDIRPLUS), made safe against recalls.
 *
 * The kernel dates the names of such an answer by the moment when it takes the answer apart, not by
 * that of asking: names that are dropped in between (a new epoch, invalidate.c) would come back.
 * So an answer is under way until its handle's next request, or a change of the directory, which
 * the kernel begins under the lock that it reads under, shows that the kernel is done with it.
 * Who drops names while answers are under way has them settled: the directory's lock is waited for
 * by notifying the kernel of a name in it, and the names are dropped again.  What was dropped while
 * an answer was being put together is told without validity.
 *
 * All functions may be called from any thread.
 */

#include "fs/inode.h"

struct fs;
struct plus;

/* A handle's last answer; zeroed before the first. */
struct plus_answer {
    struct plus_answer *next, *prev;
    uint64_t dir; /* nodeid */
    uint64_t number;
    bool under_way;
};

struct plus *plus_new(struct fs *fs, struct mcfs_error *err);

/* Ends its thread; nobody else may be using it. */
void plus_free(struct plus *p);

/* A handle's next request: the kernel is done with its last answer.  Returns the state before the
 * first name of the new one is looked up. */
uint64_t plus_begin(struct plus *p, struct plus_answer *a);

/* The answer is about to be sent.  False: names were dropped since the state was taken, and nothing
 * in the answer may be valid. */
bool plus_send(struct plus *p, struct plus_answer *a, uint64_t dir, uint64_t began);

/* The handle goes; the kernel is done with all answers of a directory. */
void plus_done(struct plus *p, struct plus_answer *a);
void plus_done_dir(struct plus *p, uint64_t dir);

/* Names are about to be dropped. */
void plus_drop(struct plus *p);

/* They were dropped.  Waits until that holds for what was under way, for that long at most. */
#define PLUS_FOREVER (-1)
void plus_settle(struct plus *p, int64_t wait_ms);

/* ---- an answer's entries (struct fuse_direntplus, one behind the other) ---- */

/* Takes the validity of all; gives the references of all back, which the kernel did not
 * get. */
void plus_void(char *data, size_t len);
void plus_forget(struct inode_table *t, const char *data, size_t len);

#endif
