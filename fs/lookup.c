/* SPDX-License-Identifier: Apache-2.0 */
/* Names to inodes. */
#include "fs/fs.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "fs/loop.h"
#include "fs/namespace.h"

#define FIXED_MS 3600000 /* that what never changes is cached */

/* What the master said of an object, for the inode of that version. */
struct seen {
    const struct mcfs_master_object *object;
    const struct node_lease *lease;
};

static void init_file(struct inode *inode, void *arg)
{
    const struct seen *seen = arg;
    inode->size = seen->object->size;
    inode->attr = seen->object->attr;
    inode->lease_until_ms = seen->lease->until_ms;
}

/* Returns the ms that the kernel may cache what was said. */
static uint64_t note_lease(struct fs *fs, struct inode *inode, const struct seen *seen)
{
    {
        LOOP_LOCK_SCOPE(&inode->lock);
        if (inode->kind == INODE_FILE)
            init_file(inode, (void *)(uintptr_t)seen);
        inode->gone = false;
    }
    int64_t left_ms = seen->lease->until_ms - mcfs_mono_ms();
    if (left_ms > 0 &&
        node_lease_holds(fs->node, inode_tenant(inode), inode_key(inode), seen->lease))
        return (uint64_t)left_ms;
    inode->lease_until_ms = 0;
    return 0;
}

static int no_entry(struct mcfs_slice key, struct mcfs_error *err)
{
    return mcfs_fail(err, MCFS_OBJECT_NOT_FOUND, "%.*s: no such key", (int)MCFS_MIN(key.len, 200),
                     key.data);
}

static int give(struct fs *fs, struct inode *inode, double timeout, struct fuse_entry_param *e,
                struct mcfs_error *err)
{
    if (!inode)
        return mcfs_fail_errno(err, ENOMEM, "lookup");
    fs_fill_entry(fs, inode, timeout, e);
    inode_give_to_kernel(fs->inodes, inode);
    return 0;
}

static int give_dir(struct fs *fs, struct mcfs_slice tenant, struct mcfs_slice prefix,
                    int64_t mtime_ns, struct fuse_entry_param *e, struct mcfs_error *err)
{
    struct inode *dir = inode_get(fs->inodes, INODE_DIR, tenant, prefix, 0, NULL, NULL);
    if (dir && mtime_ns) {
        LOOP_LOCK_SCOPE(&dir->lock);
        dir->attr.mtime_ns = mtime_ns;
    }
    return give(fs, dir, fs_dir_timeout(fs), e, err);
}

/* While a process has the key open for writing, its name is looked up each time: for that process
 * it leads to what is being written. */
static int give_file(struct fs *fs, struct mcfs_slice tenant, struct mcfs_slice key, int pid,
                     const struct mcfs_master_object *object, const struct node_lease *lease,
                     struct fuse_entry_param *e, struct mcfs_error *err)
{
    struct seen seen = {object, lease};
    bool written;
    struct inode *writer =
        inode_find_open_writer(fs->inodes, tenant, key, pid, object->version, &written);
    if (writer)
        return give(fs, writer, 0, e, err);
    struct inode *inode =
        inode_get(fs->inodes, INODE_FILE, tenant, key, object->version, init_file, &seen);
    uint64_t left_ms = inode ? note_lease(fs, inode, &seen) : 0;
    if (give(fs, inode, fs_timeout(fs, left_ms), e, err))
        return -1;
    if (written)
        e->entry_timeout = 0;
    return 0;
}

/* "<dir>/%=": the object whose key is the directory's name. */
static int resolve_self(struct fs *fs, struct mcfs_slice tenant, struct mcfs_slice prefix, int pid,
                        const struct mcfs_cancel *cancel, struct fuse_entry_param *e,
                        struct mcfs_error *err)
{
    struct node_lease lease;
    if (prefix.len < 2 || prefix.data[prefix.len - 1] != '/')
        return no_entry(prefix, err);
    struct mcfs_slice key = mcfs_slice(prefix.data, prefix.len - 1);
    struct mcfs_master_lookup found;
    if (node_lookup(fs->node, tenant, key, &found, &lease, cancel, err))
        return -1;
    if (!found.has_object)
        return no_entry(key, err);
    return give_file(fs, tenant, key, pid, &found.object, &lease, e, err);
}

static int resolve_plain(struct fs *fs, struct mcfs_slice tenant, struct mcfs_slice key, int pid,
                         const struct mcfs_cancel *cancel, struct fuse_entry_param *e,
                         struct mcfs_error *err)
{
    struct inode *inode = inode_find_writer(fs->inodes, tenant, key, pid);
    if (inode)
        return give(fs, inode, 0, e, err);
    if (temp_names_match(fs->temps, key) && (inode = temp_names_find(fs->temps, tenant, key)))
        return give(fs, inode, 1, e, err);

    struct mcfs_master_lookup found;
    struct node_lease lease;
    if (node_lookup(fs->node, tenant, key, &found, &lease, cancel, err))
        return -1;
    _cleanup_buf_ struct mcfs_buf prefix = MCFS_BUF_INIT;
    mcfs_buf_append(&prefix, key.data, key.len);
    mcfs_buf_append(&prefix, "/", 1);
    struct mcfs_slice dir = mcfs_slice(prefix.data, prefix.len);
    if (prefix.failed)
        return mcfs_fail_errno(err, ENOMEM, "lookup");
    if (found.is_dir || local_dirs_get(fs->dirs, tenant, dir, NULL, NULL))
        return give_dir(fs, tenant, dir, found.is_dir ? found.dir_mtime_ns : 0, e, err);
    if (!found.has_object)
        return no_entry(key, err);
    return give_file(fs, tenant, key, pid, &found.object, &lease, e, err);
}

int fs_resolve(struct fs *fs, struct inode *parent, const char *name, int pid,
               const struct mcfs_cancel *cancel, struct fuse_entry_param *e, struct mcfs_error *err)
{
    struct mcfs_slice tenant = inode_tenant(parent), prefix = inode_key(parent);
    if (parent->kind != INODE_DIR) {
        loop_may_wait();
        return view_lookup(fs, parent, name, cancel, e, err);
    }
    if (strlen(name) > NAME_PIECE_MAX)
        return mcfs_fail_errno(err, ENAMETOOLONG, "a component of more than %d bytes",
                               NAME_PIECE_MAX);
    _cleanup_buf_ struct mcfs_buf key = MCFS_BUF_INIT;
    mcfs_buf_append(&key, prefix.data, prefix.len);
    enum name_kind kind = namespace_decode(mcfs_slice_str(name), &key);
    struct mcfs_slice k = mcfs_slice(key.data, key.len);
    if (key.failed)
        return mcfs_fail_errno(err, ENOMEM, "lookup");
    switch (kind) {
    case NAME_SELF:
        return resolve_self(fs, tenant, prefix, pid, cancel, e, err);
    case NAME_PIECE:
        /* Only a full piece is one: "a%+" names nothing. */
        if (strlen(name) + 4 <= NAME_PIECE_MAX || key.len > MCFS_KEY_MAX)
            return no_entry(k, err);
        return give_dir(fs, tenant, k, 0, e, err);
    case NAME_BAD:
        return no_entry(k, err);
    case NAME_PLAIN:
        break;
    }
    if (key.len > MCFS_KEY_MAX) {
        mcfs_fail_errno(err, ENAMETOOLONG, "key");
        return -1;
    }
    if (key.len == 0) /* "%-" at the root is the key "" only with more behind it */
        k = mcfs_slice("", 0);
    return resolve_plain(fs, tenant, k, pid, cancel, e, err);
}

void fs_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    struct fs *fs = fs_of(req);
    struct fuse_entry_param e;
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct fs_cancel c;
    atomic_fetch_add_explicit(&fs->counters.lookups, 1, memory_order_relaxed);
    fs_cancel_begin(&c, req);
    int rc = fs_resolve(fs, inode_from(fs->inodes, parent), name, fuse_req_ctx(req)->pid, &c.cancel,
                        &e, &err);
    fs_cancel_end(&c);
    if (rc)
        fs_reply_error(req, &err);
    else if (fuse_reply_entry(req, &e) == -ENOENT) /* interrupted: the kernel has not got it */
        inode_forget(fs->inodes, inode_from(fs->inodes, e.ino), 1);
}

void fs_forget(fuse_req_t req, fuse_ino_t ino, uint64_t nlookup)
{
    struct fs *fs = fs_of(req);
    inode_forget(fs->inodes, inode_from(fs->inodes, ino), nlookup);
    fuse_reply_none(req);
}

void fs_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *forgets)
{
    struct fs *fs = fs_of(req);
    for (size_t i = 0; i < count; i++)
        inode_forget(fs->inodes, inode_from(fs->inodes, forgets[i].ino), forgets[i].nlookup);
    fuse_reply_none(req);
}

/* Asks the master again once the lease has ended.  Returns the time that attributes may be cached.
 */
static double renew(struct fs *fs, struct inode *inode, const struct mcfs_cancel *cancel)
{
    struct mcfs_master_lookup found;
    struct node_lease lease;
    int64_t left = inode->lease_until_ms - mcfs_mono_ms();
    if (left > 0)
        return fs_timeout(fs, (uint64_t)left);
    if (node_lookup(fs->node, inode_tenant(inode), inode_key(inode), &found, &lease, cancel, NULL))
        return 0;
    if (!found.has_object || found.object.version != inode->version) {
        inode->gone = true; /* who holds it open keeps what he opened */
        return 0;
    }
    struct seen seen = {&found.object, &lease};
    return fs_timeout(fs, note_lease(fs, inode, &seen));
}

/* The mtime of a directory of which this mount has no attributes of its own is the master's to say.
 * The kernel asks for it again with each change of an entry that it has requested: so the answer
 * may be as old here as it may be there, unless this mount has changed something since. */
static double renew_dir(struct fs *fs, struct inode *inode, const struct mcfs_cancel *cancel)
{
    struct mcfs_slice prefix = inode_key(inode);
    struct mcfs_master_lookup found;
    double timeout = fs_dir_attr_timeout(fs);
    bool has_attr;
    uint32_t changes;
    local_dirs_get(fs->dirs, inode_tenant(inode), prefix, NULL, &has_attr);
    if (has_attr || inode->lease_until_ms > mcfs_mono_ms())
        return timeout;
    if (prefix.len && prefix.data[prefix.len - 1] == '/')
        prefix.len--;
    {
        LOOP_LOCK_SCOPE(&inode->lock);
        changes = inode->changes;
    }
    int64_t asked_ms = mcfs_mono_ms();
    loop_may_wait();
    if (mcfs_master_lookup(node_master(fs->node), inode_tenant(inode), prefix, &found, cancel,
                           NULL))
        return timeout;
    LOOP_LOCK_SCOPE(&inode->lock);
    if (found.is_dir)
        inode->attr.mtime_ns = found.dir_mtime_ns;
    if (changes == inode->changes)
        inode->lease_until_ms = asked_ms + (int64_t)(timeout * 1000);
    return timeout;
}

void fs_touch_dir(struct fs *fs, struct inode *dir, int64_t now_ns)
{
    local_dirs_touch(fs->dirs, inode_tenant(dir), inode_key(dir), now_ns);
    LOOP_LOCK_SCOPE(&dir->lock);
    dir->changes++;
    dir->lease_until_ms = 0;
}

void fs_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct fs *fs = fs_of(req);
    struct inode *inode = inode_from(fs->inodes, ino);
    struct stat st;
    double timeout = 0;
    (void)fi;
    struct fs_cancel c;
    fs_cancel_begin(&c, req);
    if (inode->kind == INODE_FILE)
        timeout = renew(fs, inode, &c.cancel);
    else if (inode->kind == INODE_DIR)
        timeout = renew_dir(fs, inode, &c.cancel);
    else if (inode->kind == INODE_ROOT || inode->kind == INODE_TENANTS ||
             inode->kind == INODE_CONTROL || inode->kind == INODE_SNAPSHOT)
        timeout = fs_timeout(fs, FIXED_MS); /* every path begins here */
    fs_cancel_end(&c);
    loop_lock(&inode->lock);
    if (inode->staging)
        inode->size = staging_size(inode->staging);
    fs_fill_stat(fs, inode, &st);
    pthread_mutex_unlock(&inode->lock);
    fuse_reply_attr(req, &st, timeout);
}
