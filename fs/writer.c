/* SPDX-License-Identifier: Apache-2.0 */
/* An object being written: from the first open for writing to its publication. */
#include "fs/fs.h"

#include "common/cleanup.h"
#include "common/clock.h"

struct inode *writer_new(struct fs *fs, struct mcfs_slice tenant, struct mcfs_slice key, int pid,
                         const struct inode *base, const struct mcfs_cancel *cancel,
                         struct mcfs_error *err)
{
    struct staging *staging = staging_new(fs->staging, fs->staging_memory_max, err);
    if (!staging)
        return NULL;
    struct mcfs_attr attr = {.mode = MCFS_ATTR_DEFAULT_MODE, .mtime_ns = mcfs_wall_ns()};
    uint64_t base_version = 0;
    if (base) {
        struct mcfs_master_object object;
        struct replica_reader *r = node_open(fs->node, tenant, key, &object, cancel, err);
        if (!r) {
            staging_free(staging);
            return NULL;
        }
        staging_set_base(staging, r, object.size);
        attr = object.attr;
        base_version = object.version;
    }
    struct inode *w = inode_make(fs->inodes, INODE_WRITER, tenant, key);
    if (!w) {
        staging_free(staging);
        mcfs_fail_errno(err, ENOMEM, "writer");
        return NULL;
    }
    w->staging = staging;
    w->base_version = base_version;
    w->pid = pid;
    w->attr = attr;
    w->size = staging_size(staging);
    return w;
}

/* Reads what was just published, for those who go on using the writer's handle. */
static void continue_from(struct fs *fs, struct inode *w, uint64_t version)
{
    struct mcfs_master_object object;
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct replica_reader *r =
        node_open(fs->node, inode_tenant(w), inode_key(w), &object, NULL, &err);
    if (r && object.version == version) {
        staging_published(w->staging, r);
        return;
    }
    node_reader_close(r);
    /* Replaced already.  What this process wrote is gone from under it, as it is for any reader who
     * comes now. */
    staging_published(w->staging, NULL);
    staging_truncate(w->staging, 0, NULL, NULL);
    w->gone = true;
}

int writer_commit(struct fs *fs, struct inode *w, bool sync, const struct mcfs_cancel *cancel,
                  struct mcfs_error *err)
{
    if (w->gone || !w->staging)
        return 0;
    if (!w->dirty)
        return sync ? node_sync(fs->node, err) : 0;
    struct node_put put = {.tenant = inode_tenant(w),
                           .key = inode_key(w),
                           .attr = w->attr,
                           .no_replace = w->no_replace,
                           .sync = sync};
    struct node_put_result out;
    if (staging_describe(w->staging, &put, cancel, err) ||
        node_put(fs->node, &put, &out, cancel, err))
        return -1;
    atomic_fetch_add(&fs->counters.commits, 1);
    atomic_fetch_add(&fs->counters.commit_bytes, put.size);
    w->dirty = false;
    w->no_replace = false;
    w->published = out.version;
    if (!out.version)
        w->gone = true; /* a later close of the same key has won */
    else if (put.staging_path && w->opens)
        continue_from(fs, w, out.version);
    return 0;
}

void writer_finish(struct fs *fs, struct inode *w)
{
    staging_free(w->staging);
    w->staging = NULL;
    if (w->gone || !w->published) {
        inode_unlink(fs->inodes, w);
        return;
    }
    struct inode *other =
        inode_find(fs->inodes, INODE_FILE, inode_tenant(w), inode_key(w), w->published);
    /* Somebody may have looked the version up between PutEnd and here, and has an inode of his own
     * for it. */
    if (other || inode_rename(fs->inodes, w, INODE_FILE, inode_key(w), w->published))
        inode_unlink(fs->inodes, w);
    inode_unref(fs->inodes, other);
}
