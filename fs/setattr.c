/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/fs.h"

#include "common/cleanup.h"
#include "common/clock.h"

/* Which attributes a request names, and their values over what is there. */
static uint32_t wanted(const struct stat *st, int to_set, struct mcfs_attr *attr)
{
    uint32_t valid = 0;
    if (to_set & FUSE_SET_ATTR_MODE) {
        attr->mode = st->st_mode & 07777;
        valid |= 1;
    }
    if (to_set & FUSE_SET_ATTR_UID) {
        attr->uid = st->st_uid;
        valid |= 2;
    }
    if (to_set & FUSE_SET_ATTR_GID) {
        attr->gid = st->st_gid;
        valid |= 4;
    }
    if (to_set & FUSE_SET_ATTR_MTIME_NOW) {
        attr->mtime_ns = mcfs_wall_ns();
        valid |= 8;
    } else if (to_set & FUSE_SET_ATTR_MTIME) {
        attr->mtime_ns = mcfs_timespec_ns(st->st_mtim);
        valid |= 8;
    }
    return valid;
}

static void set_atime(struct inode *inode, const struct stat *st, int to_set)
{
    if (to_set & FUSE_SET_ATTR_ATIME_NOW)
        inode->atime_ns = mcfs_wall_ns();
    else if (to_set & FUSE_SET_ATTR_ATIME)
        inode->atime_ns = mcfs_timespec_ns(st->st_atim);
}

static int set_dir(struct fs *fs, struct inode *inode, const struct stat *st, int to_set,
                   struct mcfs_error *err)
{
    struct mcfs_slice tenant = inode_tenant(inode), prefix = inode_key(inode);
    struct stat now;
    bool has_attr;
    fs_fill_stat(fs, inode, &now);
    struct mcfs_attr attr = {now.st_mode & 07777, now.st_uid, now.st_gid,
                             mcfs_timespec_ns(now.st_mtim)};
    local_dirs_get(fs->dirs, tenant, prefix, &attr, &has_attr);
    if (wanted(st, to_set, &attr) && local_dirs_set_attr(fs->dirs, tenant, prefix, &attr))
        return mcfs_fail_errno(err, ENOMEM, "setattr");
    set_atime(inode, st, to_set);
    return 0;
}

static int set_file(struct fs *fs, struct inode *inode, const struct stat *st, int to_set,
                    const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    struct mcfs_attr attr = inode->attr;
    uint32_t valid = wanted(st, to_set, &attr);
    if (valid && inode->gone) {
        inode->attr = attr; /* an open file without a name: nobody else sees it */
    } else if (valid) {
        uint64_t version = inode->kind == INODE_FILE ? inode->version : inode->published;
        if (node_set_attr(fs->node, inode_tenant(inode), inode_key(inode), version, valid, &attr,
                          cancel, err)) {
            if (err->code != MCFS_OBJECT_NOT_FOUND && err->code != MCFS_REPLICA_IS_GONE)
                return -1;
            inode->gone = true;
        }
        inode->attr = attr;
    }
    set_atime(inode, st, to_set);
    return 0;
}

/* What is being written gets attributes and size at its publication; a size set by name is
 * published at once. */
static int set_staged(struct fs *fs, struct inode *inode, const struct stat *st, int to_set,
                      const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    if (to_set & FUSE_SET_ATTR_SIZE) {
        if (staging_truncate(inode->staging, (uint64_t)st->st_size, cancel, err))
            return -1;
        inode->dirty = true;
        inode->synced = false;
        inode->refused = false;
        claim_take(fs, inode);
        inode->attr.mtime_ns = mcfs_wall_ns();
        inode->size = staging_size(inode->staging);
    }
    uint64_t version = inode->published ? inode->published : inode->base_version;
    if (wanted(st, to_set, &inode->attr) && inode->kind == INODE_WRITER && !inode->dirty &&
        version) {
        struct mcfs_attr attr = inode->attr;
        if (node_set_attr(fs->node, inode_tenant(inode), inode_key(inode), version,
                          wanted(st, to_set, &attr), &attr, cancel, err) &&
            err->code != MCFS_OBJECT_NOT_FOUND && err->code != MCFS_REPLICA_IS_GONE)
            return -1;
    }
    set_atime(inode, st, to_set);
    inode->dirty |= inode->kind == INODE_TEMP;
    if (inode->kind == INODE_TEMP)
        return inode->opens ? 0 : temp_names_keep(fs->temps, inode, err);
    if (inode->opens || !inode->dirty)
        return 0;
    int rc = writer_commit(fs, inode, false, cancel, err);
    if (rc == 0 || inode->published == 0)
        writer_finish(fs, inode);
    return rc;
}

void fs_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr, int to_set,
                struct fuse_file_info *fi)
{
    struct fs *fs = fs_of(req);
    struct inode *inode = inode_from(fs->inodes, ino);
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct fs_cancel c;
    struct stat st;
    int rc = 0;
    (void)fi;
    if (fs->options->ro) {
        fuse_reply_err(req, EROFS);
        return;
    }
    fs_cancel_begin(&c, req);
    pthread_mutex_lock(&inode->lock);
    enum inode_kind kind = inode->kind;
    if (kind == INODE_WRITER && !inode->staging) /* published, and another inode stands for it */
        kind = INODE_FILE;
    switch (kind) {
    case INODE_DIR:
        rc = set_dir(fs, inode, attr, to_set, &err);
        break;
    case INODE_FILE:
        if (to_set & FUSE_SET_ATTR_SIZE) {
            /* truncate(2): the content is about to change, so the kernel comes again for an inode
             * of its own. */
            struct inode *w = writer_new(fs, inode_tenant(inode), inode_key(inode),
                                         fuse_req_ctx(req)->pid, inode, &c.cancel, &err);
            rc = -1;
            if (w) {
                claim_add(fs, w);
                mcfs_fail_errno(&err, ESTALE, "truncate");
            }
        } else {
            rc = set_file(fs, inode, attr, to_set, &c.cancel, &err);
        }
        break;
    case INODE_WRITER:
    case INODE_TEMP:
        rc = set_staged(fs, inode, attr, to_set, &c.cancel, &err);
        break;
    default:
        rc = mcfs_fail_errno(&err, EROFS, "setattr");
    }
    fs_fill_stat(fs, inode, &st);
    double timeout = inode->kind == INODE_FILE && inode->lease_until_ms > mcfs_mono_ms()
                         ? fs_timeout(fs, (uint64_t)(inode->lease_until_ms - mcfs_mono_ms()))
                         : 0;
    pthread_mutex_unlock(&inode->lock);
    fs_cancel_end(&c);
    if (rc)
        fs_reply_error(req, &err);
    else
        fuse_reply_attr(req, &st, timeout);
}
