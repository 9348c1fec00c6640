/* SPDX-License-Identifier: Apache-2.0 */
/* Reading and writing. */
#include "common/cleanup.h"
#include "common/clock.h"
#include "fs/handle.h"
#include "fs/loop.h"

#include <fcntl.h>
#include <unistd.h>

void fs_reply_from_fd(fuse_req_t req, int fd, uint64_t at, size_t len)
{
    struct fuse_bufvec out = FUSE_BUFVEC_INIT(len);
    out.buf[0].flags = FUSE_BUF_IS_FD | FUSE_BUF_FD_SEEK | FUSE_BUF_FD_RETRY;
    out.buf[0].fd = fd;
    out.buf[0].pos = (off_t)at;
    fuse_reply_data(req, &out, FUSE_BUF_SPLICE_MOVE);
}

int64_t handle_read(struct fs *fs, struct handle *h, char *buf, size_t size, uint64_t off,
                    const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    if (h->staged) {
        MCFS_LOCK_SCOPE(&h->inode->lock);
        if (!h->inode->staging)
            return mcfs_fail_errno(err, ESTALE, "read");
        return staging_read(h->inode->staging, buf, size, off, cancel, err);
    }
    if (h->content) {
        size_t len = off < (uint64_t)h->content_len
                         ? MCFS_MIN(size, (size_t)h->content_len - (size_t)off)
                         : 0;
        memcpy(buf, h->content + (len ? off : 0), len);
        return (int64_t)len;
    }
    if (h->inode->kind == INODE_SNAPFILE) {
        char id[32];
        struct mcfs_slice key = inode_key(h->inode); /* "<id>/<name>" */
        const char *slash = memchr(key.data, '/', key.len);
        _cleanup_free_ char *name = strndup(slash + 1, key.len - (size_t)(slash + 1 - key.data));
        snprintf(id, sizeof(id), "%.*s", (int)(slash - key.data), key.data);
        return mcfs_master_snapshot_read(node_master(fs->node), id, name, off, buf, (uint32_t)size,
                                         cancel, err);
    }
    int64_t done = 0;
    while ((size_t)done < size) {
        int64_t n = node_reader_read(h->reader, buf + done, size - (size_t)done,
                                     off + (uint64_t)done, cancel, err);
        if (n < 0)
            return -1;
        if (n == 0)
            break;
        done += n;
    }
    return done;
}

void fs_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
    struct fs *fs = fs_of(req);
    struct inode *inode = inode_from(fs->inodes, ino);
    struct handle *h = handle_of(fi);
    uint64_t at, length;
    atomic_fetch_add_explicit(&fs->counters.reads, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&fs->counters.read_bytes, size, memory_order_relaxed);
    if (!h && (inode->kind == INODE_FILE || inode->kind == INODE_HISTORY_FILE)) {
        unopened_read(req, inode, size, (uint64_t)off);
        return;
    }
    if (h && h->reader && size >= SPLICE_MIN) {
        int fd = node_reader_fd(h->reader, &at, &length);
        if (fd >= 0) {
            size_t left = (uint64_t)off < length ? (size_t)(length - (uint64_t)off) : 0;
            handle_done(h);
            fs_reply_from_fd(req, fd, at + (uint64_t)off, MCFS_MIN(size, left));
            return;
        }
    }
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct fs_cancel c;
    char *buf = worker_buffer(size);
    if (!buf) {
        fuse_reply_err(req, ENOMEM);
        return;
    }
    fs_cancel_begin(&c, req);
    struct handle unopened = {
        .inode = inode, .content = inode->content, .content_len = (int64_t)inode->size};
    int64_t n = handle_read(fs, h ? h : &unopened, buf, size, (uint64_t)off, &c.cancel, &err);
    fs_cancel_end(&c);
    if (h)
        handle_done(h);
    if (n < 0)
        fs_reply_error(req, &err);
    else
        fuse_reply_buf(req, buf, (size_t)n);
}

/* The caller holds the inode's lock. */
static void note_write(struct inode *inode, const struct fuse_file_info *fi, uint64_t size)
{
    /* Another descriptor of it may have been closed.  Pages written through mmap come with
     * whatever handle the kernel picked, or late. */
    if (!fi->writepage)
        handle_writes(handle_of(fi), true);
    inode->dirty = true;
    inode->synced = false;
    inode->refused = false;
    inode->size = MCFS_MAX(inode->size, size);
    inode->attr.mtime_ns = mcfs_wall_ns();
}

/* The request's bytes in one piece; NULL with an errno. */
static const char *gather(struct fuse_bufvec *in, int *errnum)
{
    size_t size = fuse_buf_size(in);
    if (in->count == 1 && !(in->buf[0].flags & FUSE_BUF_IS_FD))
        return in->buf[0].mem;
    char *buf = worker_buffer(size);
    struct fuse_bufvec to = FUSE_BUFVEC_INIT(size);
    to.buf[0].mem = buf;
    ssize_t n = buf ? fuse_buf_copy(&to, in, 0) : -ENOMEM;
    *errnum = n < 0 ? (int)-n : EIO;
    return n == (ssize_t)size ? buf : NULL;
}

/* Makes a write that was acknowledged, and what the writer added meanwhile.  The caller holds the
 * inode's lock: whoever comes later waits for it, and so for the bytes. */
static void write_acknowledged(struct fs *fs, struct inode *inode, struct behind_run *run,
                               const void *data, size_t size, uint64_t off)
{
    struct mcfs_buf more;
    staging_write_behind(inode->staging, data, size, off);
    while (behind_next(&fs->behind, run, &more, &off)) {
        staging_write_behind(inode->staging, more.data, more.len, off);
        inode->size = MCFS_MAX(inode->size, off + more.len);
        mcfs_buf_free(&more);
    }
}

/* A long write is acknowledged first, so that its writer gets the next one ready while the file is
 * written. */
void fs_write_buf(fuse_req_t req, fuse_ino_t ino, struct fuse_bufvec *in, off_t off,
                  struct fuse_file_info *fi)
{
    struct fs *fs = fs_of(req);
    struct inode *inode = inode_from(fs->inodes, ino);
    size_t size = fuse_buf_size(in);
    uint64_t end = (uint64_t)off + size;
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct fs_cancel c;
    int errnum = EIO;
    const char *data = gather(in, &errnum);
    if (!data) {
        fuse_reply_err(req, errnum);
        return;
    }
    atomic_fetch_add_explicit(&fs->counters.writes, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&fs->counters.write_bytes, size, memory_order_relaxed);
    if (!fi->writepage && behind_add(&fs->behind, handle_of(fi), data, size, (uint64_t)off)) {
        fuse_reply_write(req, size);
        return;
    }
    fs_cancel_begin(&c, req);
    loop_lock(&inode->lock);
    if (inode->staging && !staging_stays_in_memory(inode->staging, size, (uint64_t)off))
        loop_may_wait();
    if (inode->staging && staging_writes_behind(inode->staging, size, (uint64_t)off)) {
        struct behind_run run;
        note_write(inode, fi, end);
        behind_begin(&fs->behind, &run, fi->writepage ? NULL : handle_of(fi), end);
        fs_cancel_end(&c);
        fuse_reply_write(req, size);
        write_acknowledged(fs, inode, &run, data, size, (uint64_t)off);
        pthread_mutex_unlock(&inode->lock);
        return;
    }
    int rc = -1;
    if (!inode->staging)
        mcfs_fail_errno(&err, EBADF, "write to an object that is published");
    else
        rc = staging_write(inode->staging, data, size, (uint64_t)off, &c.cancel, &err);
    if (rc == 0)
        note_write(inode, fi, end);
    pthread_mutex_unlock(&inode->lock);
    fs_cancel_end(&c);
    if (rc)
        fs_reply_error(req, &err);
    else
        fuse_reply_write(req, size);
}

void fs_lseek(fuse_req_t req, fuse_ino_t ino, off_t off, int whence, struct fuse_file_info *fi)
{
    struct fs *fs = fs_of(req);
    struct inode *inode = inode_from(fs->inodes, ino);
    struct mcfs_error err = MCFS_ERROR_INIT;
    int64_t at;
    (void)fi;
    pthread_mutex_lock(&inode->lock);
    if (inode->staging)
        at = staging_seek(inode->staging, (uint64_t)off, whence == SEEK_HOLE, &err);
    else if ((uint64_t)off >= inode->size)
        at = mcfs_fail_errno(&err, ENXIO, "seek");
    else
        at = whence == SEEK_HOLE ? (int64_t)inode->size : off;
    pthread_mutex_unlock(&inode->lock);
    if (at < 0)
        fs_reply_error(req, &err);
    else
        fuse_reply_lseek(req, at);
}
