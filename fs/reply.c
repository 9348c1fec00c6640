/* SPDX-License-Identifier: Apache-2.0 */
/* What replies have in common: errors, attributes, time limits, interruption. */
#include "fs/fs.h"
#include "fs/loop.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/hash.h"
#include "common/log.h"

static void interrupted(fuse_req_t req, void *arg)
{
    (void)req;
    struct fs_cancel *c = arg;
    c->fired = true;
    mcfs_cancel_set(&c->cancel);
}

void fs_cancel_begin(struct fs_cancel *c, fuse_req_t req)
{
    c->req = req;
    c->fired = false;
    c->cancel.fd = worker_event();
    c->cancel.watch = loop_watch();
    fuse_req_interrupt_func(req, interrupted, c);
}

void fs_cancel_end(struct fs_cancel *c)
{
    fuse_req_interrupt_func(c->req, NULL, NULL);
    c->cancel.fd = -1;
    if (c->fired) /* the next request of this thread starts afresh */
        worker_event_empty();
}

void fs_reply_error(fuse_req_t req, const struct mcfs_error *err)
{
    struct fs *fs = fs_of(req);
    int errnum = err->errnum > 0 ? err->errnum : EIO;
    switch (errnum) {
    case ENOENT:
    case EEXIST:
    case EINTR:
    case ENXIO:
    case EXDEV:
    case ENODATA:
    case EPERM:
    case EBUSY:
    case ENOTEMPTY:
    case EINVAL:
    case ENAMETOOLONG:
        break;
    case ETIMEDOUT:
    case EAGAIN:
        errnum = EIO; /* never leak from the master's client */
        /* fallthrough */
    default:
        atomic_fetch_add(&fs->counters.errors, 1);
        mcfs_warning("%s (%s)", err->msg, mcfs_code_name(err->code));
    }
    fuse_reply_err(req, errnum);
}

double fs_timeout(const struct fs *fs, uint64_t ms)
{
    uint64_t limit = fs->options->attr_timeout_ms;
    return (double)(ms < limit ? ms : limit) / 1000;
}

double fs_dir_timeout(const struct fs *fs)
{
    return mcfs_master_nodes_seen(node_master(fs->node)) <= 1 ? fs_timeout(fs, 1000) : 0;
}

double fs_dir_attr_timeout(const struct fs *fs)
{
    return fs_timeout(fs, 1000);
}

uint64_t fs_ino(struct mcfs_slice tenant, struct mcfs_slice key, bool is_dir)
{
    uint64_t h = mcfs_hash_seed(key.data, key.len, mcfs_hash(tenant.data, tenant.len) + is_dir);
    return h > 1 ? h : h + 2; /* 1 is the root's */
}

void fs_apply_options(const struct fs *fs, struct stat *st)
{
    const struct mount_options *o = fs->options;
    if (o->has_uid)
        st->st_uid = o->uid;
    if (o->has_gid)
        st->st_gid = o->gid;
    if (o->has_umask)
        st->st_mode = (st->st_mode & S_IFMT) | ((S_ISDIR(st->st_mode) ? 0777 : 0666) & ~o->umask);
}

static mode_t type_of(const struct inode *inode)
{
    if (inode_is_dir(inode))
        return S_IFDIR;
    return inode->kind == INODE_LATEST ? S_IFLNK : S_IFREG;
}

static mode_t default_mode(const struct inode *inode)
{
    switch ((enum inode_kind)inode->kind) {
    case INODE_DIR:
        return 0755;
    case INODE_LATEST:
        return 0777;
    case INODE_HISTORY_FILE:
    case INODE_SNAPFILE:
    case INODE_CONTROL_FILE:
        return 0444;
    default:
        return 0555;
    }
}

void fs_fill_stat(struct fs *fs, const struct inode *inode, struct stat *st)
{
    struct mcfs_slice tenant = inode_tenant(inode), key = inode_key(inode);
    struct mcfs_attr attr = inode->attr;
    bool own_attr = inode->kind == INODE_FILE || inode->kind == INODE_WRITER ||
                    inode->kind == INODE_TEMP || inode->kind == INODE_HISTORY_FILE;
    bool has_attr = own_attr;
    *st = (struct stat){0};
    if (inode->kind == INODE_DIR)
        local_dirs_get(fs->dirs, tenant, key, &attr, &has_attr);
    st->st_mode = type_of(inode) | (has_attr ? attr.mode & 07777 : default_mode(inode));
    st->st_nlink = inode_is_dir(inode) ? 2 : inode->gone ? 0 : 1;
    st->st_uid = has_attr ? attr.uid : getuid();
    st->st_gid = has_attr ? attr.gid : getgid();
    st->st_size = inode_is_dir(inode) ? 0 : (off_t)inode->size;
    st->st_blocks = (st->st_size + 511) / 512;
    st->st_blksize = 1 << 17;
    int64_t mtime_ns = has_attr || attr.mtime_ns ? attr.mtime_ns : fs->started_ns;
    st->st_mtim = st->st_ctim = mcfs_timespec(mtime_ns);
    st->st_atim = mcfs_timespec(inode->atime_ns ? inode->atime_ns : mtime_ns);
    st->st_ino = inode->kind == INODE_ROOT ? 1 : fs_ino(tenant, key, inode_is_dir(inode));
    if (!own_attr && inode->kind != INODE_DIR)
        st->st_ino += (ino_t)inode->kind; /* names of different trees may be alike */
    fs_apply_options(fs, st);
}

void fs_fill_entry(struct fs *fs, struct inode *inode, double timeout, struct fuse_entry_param *e)
{
    *e = (struct fuse_entry_param){
        .ino = inode_nodeid(inode), .attr_timeout = timeout, .entry_timeout = timeout};
    if (inode->kind == INODE_DIR)
        e->attr_timeout = fs_dir_attr_timeout(fs);
    loop_lock(&inode->lock);
    fs_fill_stat(fs, inode, &e->attr);
    pthread_mutex_unlock(&inode->lock);
}
