/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading files that nobody told us were opened.  On a read-only mount OPEN is answered once with
 * "not implemented", and from then on the kernel opens and closes files by itself: a file whose
 * pages are cached costs no request at all.
 *
 * A reader is then kept with the inode, for the latest inodes that were read; and for those whose
 * bytes are about to leave the store, until the kernel forgets them, because somebody may have them
 * open.
 */
#include "common/cleanup.h"
#include "fs/fs.h"
#include "fs/history.h"
#include "fs/loop.h"

/* Nothing may be in use: the caller holds the inode's lock.  Returns what is to be closed after. */
static struct replica_reader *let_go(struct inode *inode)
{
    struct replica_reader *r = inode->held;
    if (inode->held_users || inode->pinned)
        return NULL;
    inode->held = NULL;
    return r;
}

/* Remembers that the inode has a reader; the one that has been remembered longest loses its own. */
static void remember(struct fs *fs, struct inode *inode)
{
    struct inode *old;
    {
        MCFS_LOCK_SCOPE(&fs->unopened_lock);
        struct inode **place = &fs->unopened[fs->unopened_next++ % MCFS_ARRAY_SIZE(fs->unopened)];
        old = *place;
        *place = inode_ref(fs->inodes, inode);
    }
    if (!old)
        return;
    struct replica_reader *r;
    {
        MCFS_LOCK_SCOPE(&old->lock);
        r = old == inode ? NULL : let_go(old);
    }
    node_reader_close(r);
    inode_unref(fs->inodes, old);
}

/* The version's bytes: here, or wherever they are. */
static struct replica_reader *open_version(struct fs *fs, struct inode *inode,
                                           const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    struct mcfs_slice tenant = inode_tenant(inode), key = inode_key(inode);
    struct mcfs_master_object object;
    if (inode->kind == INODE_HISTORY_FILE)
        return history_open(fs, inode, cancel, err);
    struct replica_reader *r = node_reader_open_stored(fs->node, tenant, key, inode->version, NULL);
    if (r || !(r = node_open(fs->node, tenant, key, &object, cancel, err)))
        return r;
    if (object.version == inode->version)
        return r;
    node_reader_close(r);
    mcfs_fail_errno(err, ESTALE, "read");
    return NULL;
}

static struct replica_reader *take(struct fs *fs, struct inode *inode,
                                   const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    {
        LOOP_LOCK_SCOPE(&inode->lock);
        if (inode->held) {
            inode->held_users++;
            return inode->held;
        }
    }
    struct replica_reader *r = open_version(fs, inode, cancel, err), *extra = NULL;
    if (!r)
        return NULL;
    {
        LOOP_LOCK_SCOPE(&inode->lock);
        extra = inode->held ? r : NULL;
        if (!inode->held)
            inode->held = r;
        inode->held_users++;
        r = inode->held;
    }
    if (extra)
        node_reader_close(extra);
    else
        remember(fs, inode);
    return r;
}

static void give_back(struct inode *inode)
{
    LOOP_LOCK_SCOPE(&inode->lock);
    inode->held_users--;
}

void unopened_read(fuse_req_t req, struct inode *inode, size_t size, uint64_t off)
{
    struct fs *fs = fs_of(req);
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct fs_cancel c;
    fs_cancel_begin(&c, req);
    struct replica_reader *r = take(fs, inode, &c.cancel, &err);
    uint64_t at, length;
    int fd = r ? node_reader_fd(r, &at, &length) : -1;
    if (fd >= 0 && size >= SPLICE_MIN) {
        fs_cancel_end(&c);
        fs_reply_from_fd(req, fd, at + off, off < length ? MCFS_MIN(size, length - off) : 0);
        give_back(inode);
        return;
    }
    char *buf = r ? worker_buffer(size) : NULL;
    int64_t done = r && !buf ? mcfs_fail_errno(&err, ENOMEM, "read") : 0;
    while (buf && (size_t)done < size) {
        int64_t n = node_reader_read(r, buf + done, size - (size_t)done, off + (uint64_t)done,
                                     &c.cancel, &err);
        if (n < 0)
            done = -1;
        if (n <= 0)
            break;
        done += n;
    }
    fs_cancel_end(&c);
    if (r)
        give_back(inode);
    if (!r || done < 0)
        fs_reply_error(req, &err);
    else
        fuse_reply_buf(req, buf, (size_t)done);
}

void unopened_hold(void *arg, struct mcfs_slice tenant, struct mcfs_slice key, uint64_t version)
{
    struct fs *fs = arg;
    struct inode *inode = fs->skip_open && fs->inodes
                              ? inode_find(fs->inodes, INODE_FILE, tenant, key, version)
                              : NULL;
    if (!inode)
        return;
    struct replica_reader *r = node_reader_open_stored(fs->node, tenant, key, version, NULL);
    {
        MCFS_LOCK_SCOPE(&inode->lock);
        inode->pinned = true;
        if (!inode->held) {
            inode->held = r;
            r = NULL;
        }
    }
    node_reader_close(r);
    inode_unref(fs->inodes, inode);
}

void unopened_free(struct fs *fs)
{
    for (size_t i = 0; i < MCFS_ARRAY_SIZE(fs->unopened); i++)
        inode_unref(fs->inodes, fs->unopened[i]);
    pthread_mutex_destroy(&fs->unopened_lock);
}
