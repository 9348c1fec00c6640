/* SPDX-License-Identifier: Apache-2.0 */
/* Ranges of what is being written: fallocate, copy_file_range. */
#include "common/cleanup.h"
#include "common/clock.h"
#include "fs/handle.h"

#include <fcntl.h>
#include <unistd.h>

#define COPY_CHUNK (1u << 20)
#define COPY_MAX (32u << 20) /* bytes for one request: whoever wants more asks again */

/* The caller holds the inode's lock. */
static void changed(struct inode *inode)
{
    inode->dirty = true;
    inode->synced = false;
    inode->refused = false;
    inode->size = staging_size(inode->staging);
    inode->attr.mtime_ns = mcfs_wall_ns();
}

static int change_range(struct inode *inode, int mode, uint64_t off, uint64_t len,
                        const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    uint64_t size = staging_size(inode->staging), end = off + len;
    bool keep_size = mode & FALLOC_FL_KEEP_SIZE;
    switch (mode & ~FALLOC_FL_KEEP_SIZE) {
    case 0:
        /* Room beyond the end would be lost at the publication. */
        if (keep_size)
            return mcfs_fail_errno(err, EOPNOTSUPP, "fallocate");
        return end > size ? staging_truncate(inode->staging, end, cancel, err) : 0;
    case FALLOC_FL_PUNCH_HOLE:
    case FALLOC_FL_ZERO_RANGE:
        if (!keep_size && end > size && staging_truncate(inode->staging, end, cancel, err))
            return -1;
        return staging_zero(inode->staging, off, len, cancel, err);
    default:
        return mcfs_fail_errno(err, EOPNOTSUPP, "fallocate");
    }
}

void fs_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t off, off_t len,
                  struct fuse_file_info *fi)
{
    struct fs *fs = fs_of(req);
    struct inode *inode = inode_from(fs->inodes, ino);
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct fs_cancel c;
    int rc = -1;
    (void)fi;
    fs_cancel_begin(&c, req);
    pthread_mutex_lock(&inode->lock);
    if (!inode->staging)
        mcfs_fail_errno(&err, EBADF, "fallocate");
    else
        rc = change_range(inode, mode, (uint64_t)off, (uint64_t)len, &c.cancel, &err);
    if (rc == 0)
        changed(inode);
    pthread_mutex_unlock(&inode->lock);
    fs_cancel_end(&c);
    if (rc)
        fs_reply_error(req, &err);
    else
        fuse_reply_err(req, 0);
}

static int64_t write_chunk(struct inode *to, const char *data, size_t len, uint64_t off,
                           const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    MCFS_LOCK_SCOPE(&to->lock);
    if (!to->staging)
        return mcfs_fail_errno(err, EBADF, "copy_file_range");
    if (staging_write(to->staging, data, len, off, cancel, err))
        return -1;
    changed(to);
    return (int64_t)len;
}

void fs_copy_file_range(fuse_req_t req, fuse_ino_t ino_in, off_t off_in,
                        struct fuse_file_info *fi_in, fuse_ino_t ino_out, off_t off_out,
                        struct fuse_file_info *fi_out, size_t len, int flags)
{
    struct fs *fs = fs_of(req);
    struct handle *from = handle_of(fi_in);
    struct inode *to = inode_from(fs->inodes, ino_out);
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct fs_cancel c;
    (void)ino_in;
    (void)flags;
    if (!from ||
        !handle_of(fi_out)) { /* the kernel opened it by itself: it copies by itself, too */
        fuse_reply_err(req, EOPNOTSUPP);
        return;
    }
    char *buf = worker_buffer(COPY_CHUNK);
    if (!buf) {
        fuse_reply_err(req, ENOMEM);
        return;
    }
    fs_cancel_begin(&c, req);
    size_t done = 0, all = MCFS_MIN(len, COPY_MAX);
    int64_t n = 0;
    while (done < all) {
        n = handle_read(fs, from, buf, MCFS_MIN(all - done, COPY_CHUNK), (uint64_t)off_in + done,
                        &c.cancel, &err);
        if (n > 0)
            n = write_chunk(to, buf, (size_t)n, (uint64_t)off_out + done, &c.cancel, &err);
        if (n <= 0)
            break;
        done += (size_t)n;
    }
    fs_cancel_end(&c);
    handle_done(from);
    if (n < 0 && !done)
        fs_reply_error(req, &err);
    else
        fuse_reply_write(req, done);
}
