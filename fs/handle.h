/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_FS_HANDLE_H
#define MCFS_FS_HANDLE_H

/* An open file. */

#include "fs/fs.h"

struct handle {
    struct opened opened;
    struct inode *inode;           /* reference held */
    struct replica_reader *reader; /* FILE: the version's bytes */
    char *content;                 /* control files: what they said at open */
    int64_t content_len;
    bool staged; /* counts in the inode's `opens`; reads and writes go to its staging */
    bool writable;
    bool writing;     /* counts in the inode's `writing`; under its lock */
    bool direct;      /* reads another version than the inode's */
    bool passing;     /* counts in the inode's passing_opens, */
    bool cached;      /* or in its cached_opens */
    int pid;          /* thread that opened it */
    atomic_uint uses; /* requests answered: orders them before the release, as the kernel alone does
                         otherwise */
};

/* The request needs the handle no more: call before its reply, after which the kernel may release
 * it. */
static inline void handle_done(struct handle *h)
{
    atomic_fetch_add_explicit(&h->uses, 1, memory_order_release);
}

/* Under the inode's lock: the handle is one that writes (again), or has been closed by its owner.
 */
static inline void handle_writes(struct handle *h, bool writing)
{
    if (!h || !h->writable || h->writing == writing)
        return;
    h->writing = writing;
    atomic_fetch_add(&h->inode->writing, writing ? 1u : -1u);
}

/* Reads up to size bytes of what was opened, fewer only at its end; the count or -1. */
int64_t handle_read(struct fs *fs, struct handle *h, char *buf, size_t size, uint64_t off,
                    const struct mcfs_cancel *cancel, struct mcfs_error *err);

static inline struct handle *handle_of(const struct fuse_file_info *fi)
{
    return (struct handle *)(uintptr_t)fi->fh;
}

#endif
