/* SPDX-License-Identifier: Apache-2.0 */
/* Opening, creating and closing.  What happens at close is here: flush publishes. */
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/log.h"
#include "fs/handle.h"
#include "fs/history.h"
#include "fs/locks.h"
#include "fs/loop.h"
#include "fs/namespace.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static void release_opened(struct fs *fs, struct opened *o);

static struct handle *handle_new(struct fs *fs, struct inode *inode, int pid,
                                 struct mcfs_error *err)
{
    struct handle *h = calloc(1, sizeof(*h));
    if (!h) {
        mcfs_fail_errno(err, ENOMEM, "open");
        return NULL;
    }
    h->inode = inode_ref(fs->inodes, inode);
    h->pid = pid;
    h->opened.release = release_opened;
    opened_add(&fs->opened, &h->opened);
    return h;
}

/* ---- where an open file's bytes come from ---- */

#define PUSH_MAX (128u << 10) /* bytes of an object that are sent along with its open */

/* The backing id of a file that is the object, if the kernel can read it by itself; 0 otherwise.
 * The caller holds the inode's lock. */
static int backing_of(struct fs *fs, struct inode *inode, struct replica_reader *reader)
{
    uint64_t offset, length;
    struct stat st;
    if (inode->passing_opens)
        return inode->backing_id;
    if (!atomic_load_explicit(&fs->passthrough.on, memory_order_relaxed) || inode->cached_opens)
        return 0;
    int fd = node_reader_fd(reader, &offset, &length);
    if (fd < 0 || offset || length <= PUSH_MAX || fstat(fd, &st) || (uint64_t)st.st_size != length)
        return 0;
    int id = passthrough_backing_open(fuse_session_fd(fs->session), fd);
    inode->backing_id = id > 0 ? id : 0;
    return inode->backing_id;
}

/* Decides how the handle reads, and counts it.  Returns the backing id or 0.  While the inode has
 * files that pass through, all do: the kernel takes no others.  What is being written bypasses the
 * page cache, where it would only be a second copy of what the staging file has there. */
static int attach(struct fs *fs, struct handle *h)
{
    struct inode *inode = h->inode;
    LOOP_LOCK_SCOPE(&inode->lock);
    if (h->staged)
        h->direct = fs->passthrough.direct_mmap;
    else if (inode->kind != INODE_FILE)
        return 0;
    if (h->direct && !inode->passing_opens)
        return 0;
    int id = h->staged ? 0 : backing_of(fs, inode, h->reader);
    h->direct = false;
    h->passing = id > 0;
    h->cached = !h->passing;
    inode->passing_opens += h->passing;
    inode->cached_opens += h->cached;
    return id;
}

static void detach(struct fs *fs, struct handle *h)
{
    struct inode *inode = h->inode;
    if (!h->passing && !h->cached)
        return;
    LOOP_LOCK_SCOPE(&inode->lock);
    inode->passing_opens -= h->passing;
    inode->cached_opens -= h->cached;
    if (h->passing && !inode->passing_opens) {
        passthrough_backing_close(fuse_session_fd(fs->session), inode->backing_id);
        inode->backing_id = 0;
    }
}

/* Sends a small object's bytes before its first open is answered: that saves the READ. */
static void push_small(struct fs *fs, struct handle *h)
{
    struct inode *inode = h->inode;
    struct mcfs_error err = MCFS_ERROR_INIT;
    uint64_t size;
    {
        LOOP_LOCK_SCOPE(&inode->lock);
        size = inode->size;
        if (!h->cached || !h->reader || inode->pushed || size == 0 || size > PUSH_MAX)
            return;
        inode->pushed = true;
    }
    uint64_t offset, length;
    char *buf = worker_buffer(PUSH_MAX);
    int fd = node_reader_fd(h->reader, &offset, &length);
    if (!buf || fd < 0 || length != size)
        return;
    struct iovec iov = {buf, size};
    bool have = preadv2(fd, &iov, 1, (off_t)offset, RWF_NOWAIT) == (ssize_t)size;
    if (!have) {
        loop_may_wait(); /* for the disk */
        have = node_reader_read(h->reader, buf, size, 0, NULL, &err) == (int64_t)size;
    }
    if (have)
        fs_push(fs, inode, buf, size);
}

static void handle_free(struct fs *fs, struct handle *h)
{
    (void)atomic_load_explicit(&h->uses, memory_order_acquire);
    opened_remove(&fs->opened, &h->opened);
    detach(fs, h);
    node_reader_close(h->reader);
    free(h->content);
    inode_unref(fs->inodes, h->inode);
    free(h);
}

/* The version that the inode stands for was the current one when the name was looked up, which was
 * part of this open: so its bytes are right as long as they are there, and nobody need be asked. */
static int open_reader(struct fs *fs, struct handle *h, const struct mcfs_cancel *cancel,
                       struct mcfs_error *err)
{
    struct inode *inode = h->inode;
    struct mcfs_slice tenant = inode_tenant(inode), key = inode_key(inode);
    struct mcfs_master_object object;
    h->reader = node_reader_open_stored(fs->node, tenant, key, inode->version, NULL);
    if (h->reader)
        return 0;
    if (inode->moved)
        return mcfs_fail_errno(err, ESTALE, "open");
    struct replica_reader *r = node_open(fs->node, tenant, key, &object, cancel, err);
    if (!r)
        return -1;
    if (object.version != inode->version && stale_once(fs, h->pid)) {
        /* Replaced since the look-up: the kernel asks again and gets the new version's inode. */
        node_reader_close(r);
        return mcfs_fail_errno(err, ESTALE, "open");
    }
    /* Replaced again and again: this handle reads the newest version past the inode's pages. */
    h->direct = object.version != inode->version;
    h->reader = r;
    return 0;
}

/* A second descriptor of a process on what it has open for writing is one of the same file. */
static bool claim_open_writer(struct fs *fs, struct inode *inode, int pid)
{
    struct inode *w = inode_find_open_writer(fs->inodes, inode_tenant(inode), inode_key(inode), pid,
                                             inode->version, NULL);
    if (!w)
        return false;
    {
        LOOP_LOCK_SCOPE(&w->lock);
        if (w->kind == INODE_WRITER && w->staging && w->writing) {
            claim_add(fs, w); /* its last close waits for us */
            return true;
        }
    }
    inode_unref(fs->inodes, w);
    return false;
}

/* An object is opened for writing: the process gets an inode of its own for that. */
static int claim_writer(struct fs *fs, struct inode *inode, int pid,
                        const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    if (!claim_open_writer(fs, inode, pid)) {
        struct inode *w =
            writer_new(fs, inode_tenant(inode), inode_key(inode), pid, inode, cancel, err);
        if (!w)
            return -1;
        claim_add(fs, w);
    }
    return mcfs_fail_errno(err, ESTALE, "open for writing");
}

/* 1: what was being written has been published meanwhile, and is an object now. */
static int open_staged(struct fs *fs, struct handle *h, int flags, const struct mcfs_cancel *cancel,
                       struct mcfs_error *err)
{
    struct inode *inode = h->inode;
    loop_may_wait();
    MCFS_LOCK_SCOPE(&inode->lock);
    if (!inode->staging)
        return inode->kind != INODE_TEMP ? 1 : mcfs_fail_errno(err, ESTALE, "open");
    if (flags & O_TRUNC) {
        if (staging_truncate(inode->staging, 0, cancel, err))
            return -1;
        inode->dirty = true;
        inode->synced = false;
        inode->size = 0;
        inode->attr.mtime_ns = mcfs_wall_ns();
    }
    inode->opens++;
    h->staged = true;
    handle_writes(h, true);
    claim_take(fs, inode);
    return 0;
}

static int open_object(struct fs *fs, struct handle *h, const struct mcfs_cancel *cancel,
                       struct mcfs_error *err)
{
    if (h->writable) {
        int rc = claim_writer(fs, h->inode, h->pid, cancel, err);
        if (rc && err->code == MCFS_OBJECT_NOT_FOUND) /* removed since: O_CREAT makes it anew */
            mcfs_fail_errno(err, ESTALE, "open for writing");
        return rc;
    }
    if (h->inode->kind != INODE_FILE) /* another inode stands for the object: look again */
        return mcfs_fail_errno(err, ESTALE, "open");
    return open_reader(fs, h, cancel, err);
}

static int open_inode(struct fs *fs, struct inode *inode, struct handle *h, int flags,
                      const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    h->writable = (flags & O_ACCMODE) != O_RDONLY;
    if (h->writable && fs->options->ro)
        return mcfs_fail_errno(err, EROFS, "open");
    switch ((enum inode_kind)inode->kind) {
    case INODE_FILE:
        return open_object(fs, h, cancel, err);
    case INODE_WRITER:
    case INODE_TEMP: {
        int rc = open_staged(fs, h, flags, cancel, err);
        return rc == 1 ? open_object(fs, h, cancel, err) : rc;
    }
    case INODE_CONTROL_FILE:
        if (h->writable)
            return mcfs_fail_errno(err, EROFS, "open");
        loop_may_wait();
        h->content_len = view_control_content(fs, inode, &h->content, err);
        return h->content_len < 0 ? -1 : 0;
    case INODE_HISTORY_FILE:
        if (h->writable)
            return mcfs_fail_errno(err, EROFS, "open");
        loop_may_wait();
        h->reader = history_open(fs, inode, cancel, err);
        return h->reader ? 0 : -1;
    case INODE_SNAPFILE:
        return h->writable ? mcfs_fail_errno(err, EROFS, "open") : 0;
    default:
        return mcfs_fail_errno(err, EISDIR, "open");
    }
}

void fs_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct fs *fs = fs_of(req);
    struct inode *inode = inode_from(fs->inodes, ino);
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct fs_cancel c;
    if (fs->skip_open) {
        fuse_reply_err(req, ENOSYS); /* and the kernel asks no more */
        return;
    }
    struct handle *h = handle_new(fs, inode, fuse_req_ctx(req)->pid, &err);
    atomic_fetch_add_explicit(&fs->counters.opens, 1, memory_order_relaxed);
    fs_cancel_begin(&c, req);
    int rc = h ? open_inode(fs, inode, h, fi->flags, &c.cancel, &err) : -1;
    fs_cancel_end(&c);
    if (rc) {
        if (h)
            handle_free(fs, h);
        if (err.errnum == ESTALE)
            fuse_reply_err(req, ESTALE); /* the kernel looks the name up again */
        else
            fs_reply_error(req, &err);
        return;
    }
    int backing_id = attach(fs, h);
    push_small(fs, h);
    fi->fh = (uint64_t)(uintptr_t)h;
    /* An inode is one version, so its pages never go stale. */
    fi->keep_cache = h->cached;
    fi->noflush = !h->writable;
    fi->direct_io = inode->kind == INODE_CONTROL_FILE || h->direct;
    rc = backing_id ? passthrough_reply_open(req, fi, backing_id) : fuse_reply_open(req, fi);
    if (backing_id)
        atomic_fetch_add_explicit(&fs->counters.passthrough_opens, 1, memory_order_relaxed);
    if (rc == -ENOENT) /* the open was interrupted */
        release_opened(fs, &h->opened);
}

/* The key of a new name; 0 or -1 with the errno of a bad one. */
static int new_key(struct fs *fs, struct inode *parent, const char *name, struct mcfs_buf *key,
                   struct mcfs_error *err)
{
    if (fs_name_key(fs, parent, name, key, err))
        return -1;
    return key->len ? 0 : mcfs_fail_errno(err, EINVAL, "'%s' stands for no key here", name);
}

static struct mcfs_attr new_attr(fuse_req_t req, mode_t mode)
{
    const struct fuse_ctx *ctx = fuse_req_ctx(req);
    return (struct mcfs_attr){mode & 07777, ctx->uid, ctx->gid, mcfs_wall_ns()};
}

static struct inode *create_inode(fuse_req_t req, struct inode *parent, const char *name,
                                  mode_t mode, bool exclusive, struct mcfs_error *err)
{
    struct fs *fs = fs_of(req);
    _cleanup_buf_ struct mcfs_buf key = MCFS_BUF_INIT;
    if (new_key(fs, parent, name, &key, err))
        return NULL;
    struct mcfs_slice k = mcfs_slice(key.data, key.len), tenant = inode_tenant(parent);
    struct mcfs_attr attr = new_attr(req, mode);
    if (temp_names_match(fs->temps, k))
        return temp_names_create(fs->temps, tenant, k, &attr, err);
    if (exclusive) {
        /* A lock file: whoever is creating it on this mount has it, published or not. */
        struct inode *other = inode_find_writer(fs->inodes, tenant, k, 0);
        if (other) {
            inode_unref(fs->inodes, other);
            mcfs_fail_errno(err, EEXIST, "create");
            return NULL;
        }
    }
    struct inode *w = writer_new(fs, tenant, k, fuse_req_ctx(req)->pid, NULL, NULL, err);
    if (w) {
        w->attr = attr;
        w->dirty = true;
        w->no_replace = exclusive;
    }
    return w;
}

/* A temporary name is this mount's alone: what the master says of the directory stays. */
static void touch_parent(struct fs *fs, fuse_ino_t parent_ino, const struct inode *made)
{
    struct inode *parent = inode_from(fs->inodes, parent_ino);
    if (made->kind == INODE_TEMP)
        local_dirs_touch(fs->dirs, inode_tenant(parent), inode_key(parent), mcfs_wall_ns());
    else
        fs_touch_dir(fs, parent, mcfs_wall_ns());
}

void fs_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
               struct fuse_file_info *fi)
{
    struct fs *fs = fs_of(req);
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct fuse_entry_param e;
    struct inode *inode =
        create_inode(req, inode_from(fs->inodes, parent), name, mode, fi->flags & O_EXCL, &err);
    struct handle *h = inode ? handle_new(fs, inode, fuse_req_ctx(req)->pid, &err) : NULL;
    if (!h) {
        inode_unref(fs->inodes, inode);
        fs_reply_error(req, &err);
        return;
    }
    h->staged = h->writable = true;
    inode->opens++;
    handle_writes(h, true);
    attach(fs, h);
    touch_parent(fs, parent, inode);
    fi->direct_io = h->direct;
    fs_fill_entry(fs, inode, inode->kind == INODE_TEMP ? 1 : 0, &e);
    inode_give_to_kernel(fs->inodes, inode);
    fi->fh = (uint64_t)(uintptr_t)h;
    fi->keep_cache = h->cached;
    if (fuse_reply_create(req, &e, fi) == -ENOENT) {
        release_opened(fs, &h->opened);
        inode_forget(fs->inodes, inode, 1);
    }
}

void fs_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t rdev)
{
    struct fs *fs = fs_of(req);
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct fuse_entry_param e;
    (void)rdev;
    if (!S_ISREG(mode)) {
        fuse_reply_err(req, EPERM);
        return;
    }
    struct inode *inode = create_inode(req, inode_from(fs->inodes, parent), name, mode, true, &err);
    if (inode && inode->kind == INODE_WRITER) {
        pthread_mutex_lock(&inode->lock);
        bool failed = writer_commit(fs, inode, false, NULL, &err);
        inode->gone |= failed;
        writer_finish(fs, inode);
        pthread_mutex_unlock(&inode->lock);
        if (failed) {
            inode_unref(fs->inodes, inode);
            inode = NULL;
        }
    }
    if (!inode) {
        fs_reply_error(req, &err);
        return;
    }
    touch_parent(fs, parent, inode);
    fs_fill_entry(fs, inode, 0, &e);
    inode_give_to_kernel(fs->inodes, inode);
    fuse_reply_entry(req, &e);
}

/* Whether two threads are of one process, or the second is gone. */
static bool is_writers_process(int caller, int writer)
{
    char path[64];
    if (caller == writer)
        return true;
    snprintf(path, sizeof(path), "/proc/%d/task/%d", caller, writer);
    if (access(path, F_OK) == 0)
        return true;
    snprintf(path, sizeof(path), "/proc/%d", writer);
    return access(path, F_OK) != 0;
}

/* close(2).  A child that inherited the descriptor and closes it (at exec, say) ends nobody's
 * writing: the object is published when the process that opened it closes, or when the last
 * descriptor is gone. */
void fs_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct fs *fs = fs_of(req);
    struct inode *inode = inode_from(fs->inodes, ino);
    struct handle *h = handle_of(fi);
    struct mcfs_error err = MCFS_ERROR_INIT;
    int rc = 0;
    if (!h) {
        fuse_reply_err(req, ENOSYS);
        return;
    }
    if (h->staged && h->writable && is_writers_process(fuse_req_ctx(req)->pid, h->pid)) {
        struct fs_cancel c;
        fs_cancel_begin(&c, req);
        MCFS_LOCK_SCOPE(&inode->lock);
        if (inode->kind == INODE_TEMP && !inode->gone)
            rc = temp_names_keep(fs->temps, inode, &err);
        else if (inode->kind == INODE_WRITER)
            rc = writer_commit(fs, inode, false, &c.cancel, &err);
        handle_writes(h, false);
        inode->refused = rc != 0;
        fs_cancel_end(&c);
    }
    struct lock_file *locks = atomic_load(&inode->locks);
    if (locks)
        locks_drop_owner(locks, LOCK_KIND_POSIX, fi->lock_owner);
    handle_done(h);
    if (rc)
        fs_reply_error(req, &err);
    else
        fuse_reply_err(req, 0);
}

void fs_fsync(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
    struct fs *fs = fs_of(req);
    struct inode *inode = inode_from(fs->inodes, ino);
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct fs_cancel c;
    int rc;
    (void)datasync;
    (void)fi;
    fs_cancel_begin(&c, req);
    pthread_mutex_lock(&inode->lock);
    if (inode->kind == INODE_WRITER && inode->staging)
        rc = writer_commit(fs, inode, true, &c.cancel, &err);
    else if (inode->kind == INODE_TEMP)
        rc = inode->gone ? 0 : temp_names_sync(fs->temps, inode, &err);
    else
        rc = node_sync(fs->node, &err);
    pthread_mutex_unlock(&inode->lock);
    fs_cancel_end(&c);
    if (rc)
        fs_reply_error(req, &err);
    else
        fuse_reply_err(req, 0);
}

/* The last descriptor of an open file is gone. */
static void release(struct fs *fs, struct handle *h)
{
    struct inode *inode = h->inode;
    struct mcfs_error err = MCFS_ERROR_INIT;
    if (h->staged) {
        loop_may_wait();
        MCFS_LOCK_SCOPE(&inode->lock);
        inode->opens--;
        handle_writes(h, false);
        if (inode->kind == INODE_TEMP && !inode->gone && inode->staging && h->writable) {
            if (temp_names_keep(fs->temps, inode, &err))
                mcfs_error("%.*s was not published: %s", MCFS_SLICE_ARG(inode_key(inode)), err.msg);
        } else if (inode->kind == INODE_WRITER && inode->staging) {
            if (inode->refused)
                inode->gone = true; /* the object of before stays */
            if (h->writable && writer_commit(fs, inode, false, NULL, &err))
                mcfs_error("%.*s was not published: %s", MCFS_SLICE_ARG(inode_key(inode)), err.msg);
            if (!inode->opens && !inode->claimed)
                writer_finish(fs, inode);
        }
    }
    struct lock_file *locks = atomic_load(&inode->locks);
    if (locks) /* also what a reader locked, whose close asks for no FLUSH */
        locks_drop_via(locks, h);
    handle_free(fs, h);
}

static void release_opened(struct fs *fs, struct opened *o)
{
    release(fs, MCFS_CONTAINER_OF(o, struct handle, opened));
}

void fs_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    (void)ino;
    release(fs_of(req), handle_of(fi));
    fuse_reply_err(req, 0);
}
