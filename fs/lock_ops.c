/* SPDX-License-Identifier: Apache-2.0 */
/* fcntl and flock requests.  One that waits is a queued request, not a waiting thread: who unlocks
 * answers it. */
#include "common/cleanup.h"
#include "fs/handle.h"
#include "fs/locks.h"

#include <fcntl.h>
#include <sys/file.h>

struct request {
    struct lock_wait wait;
    fuse_req_t req;
    struct locks *locks;
};

/* The locks that an inode shares with the others of its key. */
static struct lock_file *locks_of(struct fs *fs, struct inode *inode)
{
    struct lock_file *f = atomic_load(&inode->locks), *none = NULL;
    if (f)
        return f;
    bool named = !inode->gone && (inode->kind == INODE_FILE || inode->kind == INODE_WRITER ||
                                  inode->kind == INODE_TEMP);
    f = lock_file_get(fs->locks, inode_tenant(inode), inode_key(inode), named);
    if (f && !atomic_compare_exchange_strong(&inode->locks, &none, f)) {
        lock_file_unref(f);
        f = none;
    }
    return f;
}

/* No interrupt may come to a request that is about to be answered: libfuse calls `interrupted` with
 * the request's lock held, so after this it has returned. */
static void finish(struct request *r, int errnum)
{
    fuse_req_interrupt_func(r->req, NULL, NULL);
    fuse_reply_err(r->req, errnum);
    free(r);
}

static void done(struct lock_wait *w, int errnum)
{
    finish(MCFS_CONTAINER_OF(w, struct request, wait), errnum);
}

/* Takes a waiting request out and answers it.  One that is not queued yet is answered by who
 * queues it: libfuse may be calling from fuse_req_interrupt_func, which needs it afterwards. */
static void interrupted(fuse_req_t req, void *arg)
{
    struct request *r = arg;
    if (!locks_cancel(r->locks, &r->wait))
        return;
    fuse_reply_err(req, EINTR);
    free(r);
}

static void set(fuse_req_t req, fuse_ino_t ino, struct lock_range want, bool sleep)
{
    struct fs *fs = fs_of(req);
    struct lock_file *f = locks_of(fs, inode_from(fs->inodes, ino));
    struct request *r = f ? calloc(1, sizeof(*r)) : NULL;
    if (!r) {
        fuse_reply_err(req, ENOLCK);
        return;
    }
    r->wait.want = want;
    r->wait.done = done;
    r->req = req;
    r->locks = fs->locks;
    if (sleep)
        fuse_req_interrupt_func(req, interrupted, r);
    int rc = locks_set(f, &r->wait, sleep);
    if (rc != EINPROGRESS) /* else it is not ours any more */
        finish(r, rc);
}

static struct lock_range range_of(const struct fuse_file_info *fi, const struct flock *lock)
{
    uint64_t start = (uint64_t)lock->l_start;
    return (struct lock_range){.kind = LOCK_KIND_POSIX,
                               .type = lock->l_type,
                               .start = start,
                               .end = lock->l_len ? start + (uint64_t)lock->l_len - 1 : UINT64_MAX,
                               .owner = fi->lock_owner,
                               .via = handle_of(fi),
                               .pid = lock->l_pid};
}

void fs_getlk(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, struct flock *lock)
{
    struct fs *fs = fs_of(req);
    struct lock_file *f = locks_of(fs, inode_from(fs->inodes, ino));
    struct lock_range r = range_of(fi, lock);
    if (!f) {
        fuse_reply_err(req, ENOLCK);
        return;
    }
    locks_test(f, &r);
    struct flock found = {.l_type = r.type, .l_whence = SEEK_SET};
    if (r.type != F_UNLCK) {
        found.l_start = (off_t)r.start;
        found.l_len = r.end == UINT64_MAX ? 0 : (off_t)(r.end - r.start + 1);
        found.l_pid = r.pid;
    }
    fuse_reply_lock(req, &found);
}

void fs_setlk(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, struct flock *lock,
              int sleep)
{
    if (lock->l_start < 0 || lock->l_len < 0)
        fuse_reply_err(req, EINVAL);
    else
        set(req, ino, range_of(fi, lock), sleep != 0);
}

void fs_flock(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, int op)
{
    int what = op & ~LOCK_NB;
    struct lock_range want = {.kind = LOCK_KIND_FLOCK,
                              .type = what == LOCK_UN   ? F_UNLCK
                                      : what == LOCK_SH ? F_RDLCK
                                                        : F_WRLCK,
                              .end = UINT64_MAX,
                              .owner = fi->lock_owner,
                              .via = handle_of(fi)};
    set(req, ino, want, !(op & LOCK_NB));
}
