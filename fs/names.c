/* SPDX-License-Identifier: Apache-2.0 */
/* Changing names: unlink, mkdir, rmdir, rename. */
#include "common/cleanup.h"
#include "common/clock.h"
#include "fs/fs.h"
#include "fs/locks.h"
#include "fs/namespace.h"

#include <linux/fs.h>

int fs_name_key(struct fs *fs, struct inode *parent, const char *name, struct mcfs_buf *key,
                struct mcfs_error *err)
{
    plus_done_dir(fs->plus, inode_nodeid(parent));
    if (parent->kind != INODE_DIR)
        return mcfs_fail_errno(err, parent->kind == INODE_ROOT ? EPERM : EROFS, "'%s'", name);
    if (fs->options->ro)
        return mcfs_fail_errno(err, EROFS, "'%s'", name);
    if (strlen(name) > NAME_PIECE_MAX)
        return mcfs_fail_errno(err, ENAMETOOLONG, "name");
    struct mcfs_slice prefix = inode_key(parent);
    mcfs_buf_append(key, prefix.data, prefix.len);
    enum name_kind kind = namespace_decode(mcfs_slice_str(name), key);
    if (kind == NAME_BAD)
        return mcfs_fail_errno(err, EINVAL, "'%s': a malformed escape", name);
    if (kind == NAME_PIECE)
        return mcfs_fail_errno(err, EINVAL, "'%s': a piece of a longer name", name);
    if (kind == NAME_SELF)
        key->len = prefix.len ? prefix.len - 1 : 0;
    if (key->len > MCFS_KEY_MAX)
        return mcfs_fail_errno(err, ENAMETOOLONG, "key");
    return key->failed ? mcfs_fail_errno(err, ENOMEM, "'%s'", name) : 0;
}

static struct mcfs_slice slice_of(const struct mcfs_buf *b)
{
    return mcfs_slice(b->data, b->len);
}

/* Whatever this mount has under a key stands for nothing any more; who has it open goes on. */
static void mark_gone(struct inode *inode, void *arg)
{
    (void)arg;
    if (inode->kind == INODE_FILE || inode->kind == INODE_WRITER)
        inode->gone = true;
}

/* The same when the key goes on with another content.  A writer that was made for an open which is
 * about to come belongs to what is there then: the kernel would not look a third time. */
static void mark_replaced(struct inode *inode, void *arg)
{
    if (inode->kind != INODE_WRITER || !inode->claimed || inode->opens)
        mark_gone(inode, arg);
}

/* A directory that has lost its last key stays on this mount until rmdir: rm -r and rsync count on
 * it. */
static void keep_parent(struct fs *fs, struct inode *parent, const struct mcfs_cancel *cancel)
{
    struct mcfs_slice tenant = inode_tenant(parent), prefix = inode_key(parent);
    struct mcfs_master_lookup found;
    fs_touch_dir(fs, parent, mcfs_wall_ns());
    if (prefix.len == 0 || prefix.data[prefix.len - 1] != '/' ||
        local_dirs_get(fs->dirs, tenant, prefix, NULL, NULL))
        return;
    struct mcfs_slice path = mcfs_slice(prefix.data, prefix.len - 1);
    if (mcfs_master_lookup(node_master(fs->node), tenant, path, &found, cancel, NULL) == 0 &&
        !found.is_dir)
        local_dirs_keep(fs->dirs, tenant, prefix, NULL);
}

static int unlink_key(struct fs *fs, struct mcfs_slice tenant, struct mcfs_slice key, int pid,
                      const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    struct inode *temp = temp_names_find(fs->temps, tenant, key);
    if (temp) {
        temp_names_drop(fs->temps, temp);
        inode_unref(fs->inodes, temp);
        return 0;
    }
    struct inode *writer = inode_find_writer(fs->inodes, tenant, key, pid);
    int rc = node_remove(fs->node, tenant, key, false, cancel, err);
    if (rc && writer && err->code == MCFS_OBJECT_NOT_FOUND)
        rc = 0; /* what this process was writing had never been published */
    if (rc == 0)
        inode_for_key(fs->inodes, tenant, key, mark_gone, NULL);
    inode_unref(fs->inodes, writer);
    return rc;
}

static void reply(fuse_req_t req, int rc, const struct mcfs_error *err)
{
    if (rc)
        fs_reply_error(req, err);
    else
        fuse_reply_err(req, 0);
}

void fs_unlink(fuse_req_t req, fuse_ino_t parent_ino, const char *name)
{
    struct fs *fs = fs_of(req);
    struct inode *parent = inode_from(fs->inodes, parent_ino);
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct fs_cancel c;
    _cleanup_buf_ struct mcfs_buf key = MCFS_BUF_INIT;
    fs_cancel_begin(&c, req);
    int rc = fs_name_key(fs, parent, name, &key, &err);
    if (rc == 0)
        rc = unlink_key(fs, inode_tenant(parent), slice_of(&key), fuse_req_ctx(req)->pid, &c.cancel,
                        &err);
    if (rc == 0) {
        locks_unlink(fs->locks, inode_tenant(parent), slice_of(&key));
        keep_parent(fs, parent, &c.cancel);
    }
    fs_cancel_end(&c);
    atomic_fetch_add_explicit(&fs->counters.unlinks, 1, memory_order_relaxed);
    reply(req, rc, &err);
}

void fs_mkdir(fuse_req_t req, fuse_ino_t parent_ino, const char *name, mode_t mode)
{
    struct fs *fs = fs_of(req);
    struct inode *parent = inode_from(fs->inodes, parent_ino);
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct fuse_entry_param e;
    const struct fuse_ctx *ctx = fuse_req_ctx(req);
    _cleanup_buf_ struct mcfs_buf key = MCFS_BUF_INIT;
    struct mcfs_attr attr = {mode & 07777, ctx->uid, ctx->gid, mcfs_wall_ns()};
    int rc = fs_name_key(fs, parent, name, &key, &err);
    if (rc == 0 && strcmp(name, "%=") == 0)
        rc = mcfs_fail_errno(&err, EINVAL, "'%%=' is an object's name");
    mcfs_buf_append(&key, "/", 1);
    if (rc == 0 &&
        (key.failed || local_dirs_keep(fs->dirs, inode_tenant(parent), slice_of(&key), &attr)))
        rc = mcfs_fail_errno(&err, ENOMEM, "mkdir");
    struct inode *dir =
        rc ? NULL
           : inode_get(fs->inodes, INODE_DIR, inode_tenant(parent), slice_of(&key), 0, NULL, NULL);
    if (rc == 0 && !dir)
        rc = mcfs_fail_errno(&err, ENOMEM, "mkdir");
    if (rc) {
        fs_reply_error(req, &err);
        return;
    }
    fs_touch_dir(fs, parent, attr.mtime_ns);
    fs_fill_entry(fs, dir, fs_dir_timeout(fs), &e);
    inode_give_to_kernel(fs->inodes, dir);
    if (fuse_reply_entry(req, &e) == -ENOENT)
        inode_forget(fs->inodes, dir, 1);
}

static void count_temp(struct mcfs_slice name, struct inode *inode, void *arg)
{
    (void)name;
    (void)inode;
    ++*(unsigned *)arg;
}

/* Whether anything lies below a prefix: keys, kept directories, temporary names. */
static int check_empty(struct fs *fs, struct mcfs_slice tenant, struct mcfs_slice prefix,
                       bool *exists, const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    struct mcfs_master_lookup found;
    unsigned temps = 0;
    if (mcfs_master_lookup(node_master(fs->node), tenant, mcfs_slice(prefix.data, prefix.len - 1),
                           &found, cancel, err))
        return -1;
    temp_names_children(fs->temps, tenant, prefix, count_temp, &temps);
    if (found.is_dir || temps || local_dirs_has_children(fs->dirs, tenant, prefix))
        return mcfs_fail_errno(err, ENOTEMPTY, "directory");
    *exists = local_dirs_get(fs->dirs, tenant, prefix, NULL, NULL);
    if (!*exists && found.has_object)
        return mcfs_fail_errno(err, ENOTDIR, "directory");
    return 0;
}

/* A directory is removed; one of its name that is made later is another, while somebody may be in
 * this one still. */
static void retire_dir(struct fs *fs, struct mcfs_slice tenant, struct mcfs_slice prefix)
{
    local_dirs_drop(fs->dirs, tenant, prefix);
    struct inode *dir = inode_find(fs->inodes, INODE_DIR, tenant, prefix, 0);
    if (!dir)
        return;
    {
        /* A version of its own: no look-up finds it, and it is freed with the table. */
        static _Atomic uint64_t retired = 1;
        MCFS_LOCK_SCOPE(&dir->lock);
        dir->gone = true;
        if (inode_rename(fs->inodes, dir, INODE_DIR, prefix, atomic_fetch_add(&retired, 1)))
            inode_unlink(fs->inodes, dir);
    }
    inode_unref(fs->inodes, dir);
}

void fs_rmdir(fuse_req_t req, fuse_ino_t parent_ino, const char *name)
{
    struct fs *fs = fs_of(req);
    struct inode *parent = inode_from(fs->inodes, parent_ino);
    struct mcfs_error err = MCFS_ERROR_INIT;
    _cleanup_buf_ struct mcfs_buf key = MCFS_BUF_INIT;
    struct fs_cancel c;
    bool exists = false;
    int rc = fs_name_key(fs, parent, name, &key, &err);
    mcfs_buf_append(&key, "/", 1);
    fs_cancel_begin(&c, req);
    if (rc == 0)
        rc = check_empty(fs, inode_tenant(parent), slice_of(&key), &exists, &c.cancel, &err);
    if (rc == 0 && !exists)
        rc = mcfs_fail_errno(&err, ENOENT, "rmdir");
    if (rc == 0) {
        retire_dir(fs, inode_tenant(parent), slice_of(&key));
        keep_parent(fs, parent, &c.cancel);
    }
    fs_cancel_end(&c);
    reply(req, rc, &err);
}

/* ---- rename ---- */

struct rename {
    struct fs *fs;
    struct mcfs_slice tenant, from, to;
    bool no_replace, exchange;
    int pid;
    const struct mcfs_cancel *cancel;
    bool is_key; /* out: what has the new name is an object */
};

/* Older versions of a key whose name has changed: the kernel may take one of them along under the
 * new name, which it has to look up again. */
static void mark_moved(struct inode *inode, void *arg)
{
    (void)arg;
    if (inode->kind == INODE_FILE)
        inode->moved = true;
}

struct version_of_key {
    uint64_t version;
    struct inode *inode;
};

static void find_version(struct inode *inode, void *arg)
{
    struct version_of_key *f = arg;
    bool it_is = inode->kind == INODE_FILE ? inode->version == f->version
                                           : inode->kind == INODE_WRITER && !inode->gone &&
                                                 inode->published == f->version;
    if (it_is && !f->inode) {
        inode->refs++; /* under the table's lock */
        f->inode = inode;
    }
}

static struct inode *inode_of(const struct rename *r, struct mcfs_slice key, uint64_t version)
{
    struct version_of_key f = {version, NULL};
    inode_for_key(r->fs->inodes, r->tenant, key, find_version, &f);
    return f.inode;
}

/* The inode of an object goes with its name: same bytes, so same pages.  (Other inodes of the key
 * are older versions that somebody has open.)  It may still be the writer's whose close published
 * it. */
static void move_inode(struct fs *fs, struct inode *inode, struct mcfs_slice to, uint64_t version)
{
    if (!inode) {
        fs_forget_names(fs);
        return;
    }
    {
        MCFS_LOCK_SCOPE(&inode->lock);
        bool writer = inode->kind == INODE_WRITER;
        if (inode_rename(fs->inodes, inode, inode->kind, to, writer ? 0 : version))
            inode_unlink(fs->inodes, inode);
        else
            inode->moved = false;
        if (writer)
            inode->published = version;
    }
    inode_unref(fs->inodes, inode);
}

/* What a temporary name holds becomes an object under its final name, without another copy. */
static int publish_temp(const struct rename *r, struct inode *temp, struct mcfs_error *err)
{
    struct fs *fs = r->fs;
    struct node_put put = {.tenant = r->tenant, .key = r->to, .no_replace = r->no_replace};
    struct node_put_result out;
    MCFS_LOCK_SCOPE(&temp->lock);
    put.attr = temp->attr;
    put.sync = temp->synced; /* its content was to survive power loss, under either name */
    if (staging_describe(temp->staging, &put, r->cancel, err) ||
        node_put(fs->node, &put, &out, r->cancel, err))
        return -1;
    inode_for_key(fs->inodes, r->tenant, r->to, mark_replaced, NULL);
    temp_names_forget(fs->temps, temp);
    temp->published = out.version;
    temp->dirty = false;
    if (temp->opens) {
        /* Still open: what its holders write now is another version of the object. */
        struct mcfs_master_object object;
        struct replica_reader *base = node_open(fs->node, r->tenant, r->to, &object, NULL, err);
        staging_published(temp->staging, base);
        if (inode_rename(fs->inodes, temp, INODE_WRITER, r->to, 0))
            inode_unlink(fs->inodes, temp);
        return 0;
    }
    staging_published(temp->staging, NULL);
    if (inode_rename(fs->inodes, temp, INODE_WRITER, r->to, 0)) {
        inode_unlink(fs->inodes, temp);
        return 0;
    }
    writer_finish(fs, temp);
    return 0;
}

/* An object gets a temporary name: rare (backing something up before replacing it), so it is
 * copied. */
static int object_to_temp(const struct rename *r, struct mcfs_error *err)
{
    struct fs *fs = r->fs;
    struct mcfs_master_object object;
    struct replica_reader *reader =
        node_open(fs->node, r->tenant, r->from, &object, r->cancel, err);
    if (!reader)
        return -1;
    struct inode *temp = temp_names_create(fs->temps, r->tenant, r->to, &object.attr, err);
    if (!temp) {
        node_reader_close(reader);
        return -1;
    }
    {
        MCFS_LOCK_SCOPE(&temp->lock);
        staging_set_base(temp->staging, reader, object.size);
        temp->size = object.size;
        if (temp_names_keep(fs->temps, temp, err)) {
            inode_unref(fs->inodes, temp);
            return -1;
        }
    }
    int rc = node_remove(fs->node, r->tenant, r->from, false, r->cancel, err);
    if (rc == 0) {
        struct inode *object_inode =
            inode_find(fs->inodes, INODE_FILE, r->tenant, r->from, object.version);
        inode_for_key(fs->inodes, r->tenant, r->from, mark_gone, NULL);
        if (object_inode && !temp_names_take_over(fs->temps, temp, object_inode)) {
            object_inode->moved = true;
            fs_forget_names(fs);
        }
        inode_unref(fs->inodes, object_inode);
    }
    inode_unref(fs->inodes, temp);
    return rc;
}

/* What this process is writing under a name that is about to change is published now, under its
 * present name.  *writer gets the inode, for move_writer, or NULL. */
static int publish_writer(const struct rename *r, struct mcfs_slice key, struct inode **writer,
                          struct mcfs_error *err)
{
    struct inode *w = *writer = inode_find_writer(r->fs->inodes, r->tenant, key, r->pid);
    if (!w)
        return 0;
    MCFS_LOCK_SCOPE(&w->lock);
    return writer_commit(r->fs, w, false, r->cancel, err);
}

/* The writer goes on under the new name, if there is one. */
static void move_writer(struct fs *fs, struct inode *w, bool renamed, struct mcfs_slice to)
{
    if (!w)
        return;
    if (renamed) {
        MCFS_LOCK_SCOPE(&w->lock);
        if (inode_rename(fs->inodes, w, INODE_WRITER, to, 0))
            w->gone = true; /* without memory: what is written now must not go elsewhere */
    }
    inode_unref(fs->inodes, w);
}

static int rename_file(struct rename *r, struct mcfs_error *err)
{
    struct fs *fs = r->fs;
    struct inode *temp = temp_names_find(fs->temps, r->tenant, r->from);
    bool to_temp = temp_names_match(fs->temps, r->to);
    r->is_key = !to_temp;
    if (temp) {
        int rc =
            to_temp ? temp_names_rename(fs->temps, temp, r->to, err) : publish_temp(r, temp, err);
        inode_unref(fs->inodes, temp);
        return rc;
    }
    struct inode *writer;
    struct node_put_result out;
    int rc = publish_writer(r, r->from, &writer, err);
    if (rc == 0)
        rc = to_temp ? object_to_temp(r, err)
                     : node_rename(fs->node, r->tenant, r->from, r->to, r->no_replace, &out,
                                   r->cancel, err);
    move_writer(fs, writer, rc == 0, r->to);
    if (rc || to_temp)
        return rc;
    inode_for_key(fs->inodes, r->tenant, r->from, mark_moved, NULL);
    inode_for_key(fs->inodes, r->tenant, r->to, mark_replaced, NULL);
    move_inode(fs, inode_of(r, r->from, out.from_version), r->to, out.version);
    return 0;
}

static bool is_dir(const struct rename *r, struct mcfs_slice key)
{
    _cleanup_buf_ struct mcfs_buf dir = MCFS_BUF_INIT;
    struct mcfs_master_lookup found;
    mcfs_buf_append(&dir, key.data, key.len);
    mcfs_buf_append(&dir, "/", 1);
    return local_dirs_get(r->fs->dirs, r->tenant, slice_of(&dir), NULL, NULL) ||
           (mcfs_master_lookup(node_master(r->fs->node), r->tenant, key, &found, r->cancel, NULL) ==
                0 &&
            found.is_dir);
}

/* RENAME_EXCHANGE, for two objects.  Temporary names are this mount's alone, and directories are
 * what their keys make of them: those are not exchanged. */
static int exchange_objects(const struct rename *r, struct mcfs_error *err)
{
    struct fs *fs = r->fs;
    uint64_t v[4];
    if (temp_names_match(fs->temps, r->from) || temp_names_match(fs->temps, r->to))
        return mcfs_fail_errno(err, EINVAL, "exchange with a temporary name");
    if (is_dir(r, r->to))
        return mcfs_fail_errno(err, EXDEV, "exchange with a directory");
    struct inode *wa, *wb = NULL;
    int rc = publish_writer(r, r->from, &wa, err);
    if (rc == 0)
        rc = publish_writer(r, r->to, &wb, err);
    if (rc == 0)
        rc = node_exchange(fs->node, r->tenant, r->from, r->to, v, r->cancel, err);
    move_writer(fs, wa, rc == 0, r->to);
    move_writer(fs, wb, rc == 0, r->from);
    if (rc)
        return -1;
    inode_for_key(fs->inodes, r->tenant, r->from, mark_moved, NULL);
    inode_for_key(fs->inodes, r->tenant, r->to, mark_moved, NULL);
    struct inode *a = inode_of(r, r->from, v[0]), *b = inode_of(r, r->to, v[1]);
    move_inode(fs, a, r->to, v[3]);
    move_inode(fs, b, r->from, v[2]);
    return 0;
}

/* An empty directory that this mount keeps can be renamed; one with keys is copied by mv (EXDEV).
 */
static int rename_dir(const struct rename *r, struct mcfs_error *err)
{
    struct fs *fs = r->fs;
    _cleanup_buf_ struct mcfs_buf from = MCFS_BUF_INIT, to = MCFS_BUF_INIT;
    struct mcfs_attr attr;
    bool exists = false, target = false, has_attr;
    mcfs_buf_append(&from, r->from.data, r->from.len);
    mcfs_buf_append(&from, "/", 1);
    mcfs_buf_append(&to, r->to.data, r->to.len);
    mcfs_buf_append(&to, "/", 1);
    if (from.failed || to.failed)
        return mcfs_fail_errno(err, ENOMEM, "rename");
    if (check_empty(fs, r->tenant, slice_of(&from), &exists, r->cancel, err))
        return err->errnum == ENOTEMPTY ? mcfs_fail_errno(err, EXDEV, "rename") : -1;
    if (!exists)
        return mcfs_fail_errno(err, ENOENT, "rename");
    if (check_empty(fs, r->tenant, slice_of(&to), &target, r->cancel, err))
        return -1;
    if (target && r->no_replace)
        return mcfs_fail_errno(err, EEXIST, "rename");
    local_dirs_get(fs->dirs, r->tenant, slice_of(&from), &attr, &has_attr);
    if (target)
        retire_dir(fs, r->tenant, slice_of(&to));
    local_dirs_drop(fs->dirs, r->tenant, slice_of(&from));
    if (local_dirs_keep(fs->dirs, r->tenant, slice_of(&to), has_attr ? &attr : NULL))
        return mcfs_fail_errno(err, ENOMEM, "rename");
    struct inode *dir = inode_find(fs->inodes, INODE_DIR, r->tenant, slice_of(&from), 0);
    if (dir) {
        MCFS_LOCK_SCOPE(&dir->lock);
        inode_rename(fs->inodes, dir, INODE_DIR, slice_of(&to), 0);
    }
    inode_unref(fs->inodes, dir);
    return 0;
}

static int rename_any(struct rename *r, struct mcfs_error *err)
{
    _cleanup_buf_ struct mcfs_buf dir = MCFS_BUF_INIT;
    struct mcfs_master_lookup found;
    mcfs_buf_append(&dir, r->from.data, r->from.len);
    mcfs_buf_append(&dir, "/", 1);
    if (local_dirs_get(r->fs->dirs, r->tenant, slice_of(&dir), NULL, NULL))
        return r->exchange ? mcfs_fail_errno(err, EXDEV, "exchange of directories")
                           : rename_dir(r, err);
    struct inode *temp = temp_names_find(r->fs->temps, r->tenant, r->from);
    inode_unref(r->fs->inodes, temp);
    if (!temp &&
        mcfs_master_lookup(node_master(r->fs->node), r->tenant, r->from, &found, r->cancel, err))
        return -1;
    if (!temp && found.is_dir)
        return mcfs_fail_errno(err, EXDEV, "rename");
    if (mcfs_slice_eq(r->from, r->to))
        return 0;
    return r->exchange ? exchange_objects(r, err) : rename_file(r, err);
}

void fs_rename(fuse_req_t req, fuse_ino_t parent_ino, const char *name, fuse_ino_t newparent_ino,
               const char *newname, unsigned flags)
{
    struct fs *fs = fs_of(req);
    struct inode *parent = inode_from(fs->inodes, parent_ino);
    struct inode *newparent = inode_from(fs->inodes, newparent_ino);
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct fs_cancel c;
    _cleanup_buf_ struct mcfs_buf from = MCFS_BUF_INIT, to = MCFS_BUF_INIT;
    int rc = fs_name_key(fs, parent, name, &from, &err);
    if (rc == 0)
        rc = fs_name_key(fs, newparent, newname, &to, &err);
    if (rc == 0 && !mcfs_slice_eq(inode_tenant(parent), inode_tenant(newparent)))
        rc = mcfs_fail_errno(&err, EXDEV, "rename between tenants");
    if (rc == 0 && flags != 0 && flags != RENAME_NOREPLACE && flags != RENAME_EXCHANGE)
        rc = mcfs_fail_errno(&err, EINVAL, "rename");
    if (rc == 0 && to.len == 0)
        rc = mcfs_fail_errno(&err, EINVAL, "an empty key");
    if (rc == 0) {
        fs_cancel_begin(&c, req);
        struct rename r = {.fs = fs,
                           .tenant = inode_tenant(parent),
                           .from = slice_of(&from),
                           .to = slice_of(&to),
                           .no_replace = flags & RENAME_NOREPLACE,
                           .exchange = flags & RENAME_EXCHANGE,
                           .pid = fuse_req_ctx(req)->pid,
                           .cancel = &c.cancel};
        rc = rename_any(&r, &err);
        if (rc == 0) {
            (r.exchange ? locks_exchange : locks_rename)(fs->locks, r.tenant, r.from, r.to);
            /* Whose key has another name in it has not lost its last one. */
            if (parent != newparent || !r.is_key)
                keep_parent(fs, parent, &c.cancel);
            fs_touch_dir(fs, newparent, mcfs_wall_ns());
        }
        fs_cancel_end(&c);
    }
    atomic_fetch_add_explicit(&fs->counters.renames, 1, memory_order_relaxed);
    reply(req, rc, &err);
}

void fs_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t newparent, const char *newname)
{
    (void)ino;
    (void)newparent;
    (void)newname;
    fuse_reply_err(req, EPERM);
}

void fs_symlink(fuse_req_t req, const char *link, fuse_ino_t parent, const char *name)
{
    (void)link;
    (void)parent;
    (void)name;
    fuse_reply_err(req, EPERM);
}
