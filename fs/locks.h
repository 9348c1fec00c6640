/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_FS_LOCKS_H
#define MCFS_FS_LOCKS_H

/*
 * Advisory locks of one mount: fcntl's byte ranges (POSIX) and flock's whole files.
 *
 * The kernel keeps locks by inode, but processes that write one key have an inode each.  So they
 * are kept here, in a lock_file that all inodes of a key share.  Whoever must wait is queued and
 * told later: no thread waits.  Every function may be called by any thread; callbacks are called
 * with no lock held.
 */

#include <mooncakefs/object.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct locks;
struct lock_file;

enum lock_kind { LOCK_KIND_POSIX, LOCK_KIND_FLOCK };

/* What is asked for, and what is held. */
struct lock_range {
    enum lock_kind kind;
    short type;          /* F_RDLCK, F_WRLCK, F_UNLCK */
    uint64_t start, end; /* first and last byte; end UINT64_MAX: however far the file grows */
    uint64_t owner;      /* as FUSE names it */
    const void *via;     /* the open file that it was taken through */
    pid_t pid;           /* for F_GETLK */
};

enum lock_state { LOCK_NEW, LOCK_QUEUED, LOCK_DONE };

/* A request for a lock, the caller's.  Once it is queued it must stay until `done` was called or
 * locks_cancel has taken it out. */
struct lock_wait {
    struct lock_range want;
    void (*done)(struct lock_wait *w, int errnum); /* granted (0), or what went wrong */
    /* the rest is locks.c's; starts as zeros */
    enum lock_state state;
    bool cancelled;
    struct lock_file *file;
    struct lock_wait *next;
    uint64_t seen;
};

struct locks *locks_new(void); /* NULL without memory */
/* Requests that wait for a lock now. */
unsigned locks_waiting(struct locks *l);

/* Ends all waits with EINTR. */
void locks_end_waits(struct locks *l);
/* After the last lock_file was given back. */
void locks_free(struct locks *l);

/* The locks of a key, or of one inode alone (`named` false); a reference that lock_file_unref gives
 * back.  NULL without memory. */
struct lock_file *lock_file_get(struct locks *l, struct mcfs_slice tenant, struct mcfs_slice key,
                                bool named);
void lock_file_unref(struct lock_file *f);

/* Takes, changes or drops a lock.  0, or an errno: EAGAIN (held by another), EDEADLK, ENOLCK
 * (without memory), EINTR (cancelled before); with `sleep` EINPROGRESS instead of EAGAIN: queued,
 * and w->done will be called. */
int locks_set(struct lock_file *f, struct lock_wait *w, bool sleep);

/* A lock that is in the way of *want; *want's type is F_UNLCK when there is none. */
void locks_test(struct lock_file *f, struct lock_range *want);

/* Takes a request out of its queue, or makes locks_set fail when it was not called yet.  Returns
 * whether it was queued: it is the caller's again and done is not called. */
bool locks_cancel(struct locks *l, struct lock_wait *w);

/* close(2): all locks of a kind that an owner has. */
void locks_drop_owner(struct lock_file *f, enum lock_kind kind, uint64_t owner);
/* The open file is gone, and with it what was locked through it. */
void locks_drop_via(struct lock_file *f, const void *via);

/* A key has got another name, and who has locks on it keeps them; `to` was replaced, and those on
 * it stay with those who have it open. */
void locks_rename(struct locks *l, struct mcfs_slice tenant, struct mcfs_slice from,
                  struct mcfs_slice to);
/* Two keys have swapped names, and locks go along. */
void locks_exchange(struct locks *l, struct mcfs_slice tenant, struct mcfs_slice a,
                    struct mcfs_slice b);
/* A key was unlinked: who comes by its name later has other locks. */
void locks_unlink(struct locks *l, struct mcfs_slice tenant, struct mcfs_slice key);

#endif
