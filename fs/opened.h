/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_FS_OPENED_H
#define MCFS_FS_OPENED_H

/*
 * What is open.  The kernel sends RELEASE some time after the last close(2), and an unmount does
 * not wait for those that are still on their way: what they would have released is found here.
 */

#include <pthread.h>

struct fs;

/* Lies in what an open file or directory is to the daemon. */
struct opened {
    struct opened *prev, *next;
    void (*release)(struct fs *fs, struct opened *o); /* as RELEASE would; removes it */
};

#define OPENED_LISTS 16

/* All zero at first.  Several lists, so that opens on several threads seldom meet. */
struct opened_lists {
    struct opened_list {
        pthread_mutex_t lock;
        struct opened *first;
    } __attribute__((aligned(64))) lists[OPENED_LISTS];
};

void opened_init(struct opened_lists *l);
void opened_add(struct opened_lists *l, struct opened *o);
void opened_remove(struct opened_lists *l, struct opened *o);

/* Releases all that is left; no request may be running any more. */
void opened_release_all(struct opened_lists *l, struct fs *fs);

#endif
