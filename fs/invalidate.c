/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The mount's part in recalls: to stop the kernel from answering out of its caches.  Attributes are
 * dropped by inode. Names are dropped all at once, by a new epoch, where the kernel has that
 * (Linux 6.16): dropping one name needs its directory's lock, which an unlink that is itself
 * waiting for another mount may hold.
 */
#include "fs/fs.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "fs/namespace.h"

#include <linux/fuse.h>
#include <unistd.h>

#define STOP_WAIT_NS 2000000000ll
/* For what listings told, whose directory may be waiting for the session. */
#define LOST_WAIT_MS 100
#define EVICTED_WAIT_MS 1000
#define NOTIFY_INC_EPOCH 8 /* enum fuse_notify_code, protocol 7.44 */

/* Returns 0, or -1 where the kernel does not know it. */
static int new_epoch(struct fs *fs)
{
    struct fuse_out_header out = {.len = sizeof(out), .error = NOTIFY_INC_EPOCH, .unique = 0};
    if (atomic_load(&fs->no_epoch))
        return -1;
    if (write(fuse_session_fd(fs->session), &out, sizeof(out)) == sizeof(out))
        return 0;
    atomic_store(&fs->no_epoch, true);
    return -1;
}

void fs_new_epoch(struct fs *fs)
{
    pthread_rwlock_rdlock(&fs->notify_lock);
    if (fs->mounted)
        new_epoch(fs);
    pthread_rwlock_unlock(&fs->notify_lock);
}

void fs_await_directory(struct fs *fs, uint64_t nodeid, const char *no_name)
{
    pthread_rwlock_rdlock(&fs->notify_lock);
    if (fs->mounted)
        fuse_lowlevel_notify_inval_entry(fs->session, nodeid, no_name, strlen(no_name));
    pthread_rwlock_unlock(&fs->notify_lock);
}

void fs_forget_names(void *arg)
{
    struct fs *fs = arg;
    plus_drop(fs->plus);
    fs_new_epoch(fs);
    plus_settle(fs->plus, 0);
}

static void drop_name(struct fs *fs, struct mcfs_slice tenant, struct mcfs_slice key)
{
    const char *slash = memrchr(key.data, '/', key.len);
    size_t dir = slash ? (size_t)(slash - key.data) + 1 : 0;
    struct inode *parent = inode_find(fs->inodes, INODE_DIR, tenant, mcfs_slice(key.data, dir), 0);
    if (!parent)
        return;
    _cleanup_buf_ struct mcfs_buf name = MCFS_BUF_INIT;
    namespace_encode(mcfs_slice(key.data + dir, key.len - dir), &name);
    if (!name.failed)
        fuse_lowlevel_notify_inval_entry(fs->session, inode_nodeid(parent), (char *)name.data,
                                         name.len);
    inode_unref(fs->inodes, parent);
}

static void end_lease(struct fs *fs, struct inode *inode)
{
    inode->lease_until_ms = 0;
    /* A negative offset: attributes only.  The pages are this version's for ever. */
    fuse_lowlevel_notify_inval_inode(fs->session, inode_nodeid(inode), -1, 0);
}

/* Under the lock: the version's inode, reference raised; NULL when there is none or no mount. */
static struct inode *find_file(struct fs *fs, struct mcfs_slice tenant, struct mcfs_slice key,
                               uint64_t version)
{
    return fs->mounted ? inode_find(fs->inodes, INODE_FILE, tenant, key, version) : NULL;
}

static void end_lease_of(struct fs *fs, struct mcfs_slice tenant, struct mcfs_slice key,
                         uint64_t version)
{
    struct inode *inode = find_file(fs, tenant, key, version);
    if (inode)
        end_lease(fs, inode);
    inode_unref(fs->inodes, inode);
}

void fs_recall(void *arg, struct mcfs_slice tenant, struct mcfs_slice key, uint64_t version)
{
    struct fs *fs = arg;
    atomic_fetch_add_explicit(&fs->counters.recalls, 1, memory_order_relaxed);
    pthread_rwlock_rdlock(&fs->notify_lock);
    end_lease_of(fs, tenant, key, version);
    plus_drop(fs->plus);
    if (fs->mounted && new_epoch(fs))
        drop_name(fs, tenant, key);
    pthread_rwlock_unlock(&fs->notify_lock);
    if (!atomic_load(&fs->no_epoch)) /* else the name's directory was waited for */
        plus_settle(fs->plus, PLUS_FOREVER);
}

void fs_evicting(void *arg, struct mcfs_slice tenant, struct mcfs_slice key, uint64_t version)
{
    struct fs *fs = arg;
    pthread_rwlock_rdlock(&fs->notify_lock);
    end_lease_of(fs, tenant, key, version);
    pthread_rwlock_unlock(&fs->notify_lock);
}

void fs_evicted(void *arg, struct mcfs_slice tenant, struct mcfs_slice key, uint64_t version)
{
    struct fs *fs = arg;
    pthread_rwlock_rdlock(&fs->notify_lock);
    struct inode *inode = find_file(fs, tenant, key, version);
    if (inode) {
        inode->gone = true;
        fuse_lowlevel_notify_inval_inode(fs->session, inode_nodeid(inode), 0, 0);
    }
    inode_unref(fs->inodes, inode);
    if (fs->mounted && atomic_load(&fs->no_epoch))
        drop_name(fs, tenant, key);
    pthread_rwlock_unlock(&fs->notify_lock);
    plus_settle(fs->plus, EVICTED_WAIT_MS);
}

void fs_stop_notifying(struct fs *fs)
{
    /* A name being dropped may wait for a directory that the kernel gives free only when we
     * unmount. */
    struct timespec until = mcfs_timespec(mcfs_wall_ns() + STOP_WAIT_NS);
    bool locked = pthread_rwlock_timedwrlock(&fs->notify_lock, &until) == 0;
    fs->mounted = false;
    if (locked)
        pthread_rwlock_unlock(&fs->notify_lock);
}

static void end_any_lease(struct inode *inode, void *arg)
{
    struct fs *fs = arg;
    if (inode->kind != INODE_FILE)
        return;
    end_lease(fs, inode);
    if (atomic_load(&fs->no_epoch))
        drop_name(fs, inode_tenant(inode), inode_key(inode));
}

void fs_session_lost(void *arg)
{
    struct fs *fs = arg;
    plus_drop(fs->plus);
    pthread_rwlock_rdlock(&fs->notify_lock);
    if (fs->mounted) {
        new_epoch(fs);
        inode_for_all(fs->inodes, end_any_lease, fs);
    }
    pthread_rwlock_unlock(&fs->notify_lock);
    plus_settle(fs->plus, LOST_WAIT_MS);
}
