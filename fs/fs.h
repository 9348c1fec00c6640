/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_FS_FS_H
#define MCFS_FS_FS_H

/*
 * The mount: what its parts share.
 *
 * An inode of the kernel (a nodeid) stands for one version of an object, not for a name.  A new
 * version has a new nodeid, so pages in the kernel's cache never go stale, an open reader keeps the
 * pages of what it opened, and a look-up after the lease finds either the same nodeid or another
 * one.  What is being written has a nodeid of its own (INODE_WRITER) that only the writing process
 * is led to, so that nobody else sees unpublished bytes or sizes. st_ino is a hash of tenant and
 * key, the same for all of them.
 */

#define FUSE_USE_VERSION 314
#include <fuse_lowlevel.h>

#include "fs/behind.h"
#include "fs/inode.h"
#include "fs/local_dirs.h"
#include "fs/node/node.h"
#include "fs/opened.h"
#include "fs/options.h"
#include "fs/passthrough.h"
#include "fs/plus.h"
#include "fs/temp_names.h"

#include <stdatomic.h>

struct fs {
    struct mount_options *options;
    struct node *node;
    struct fuse_session *session;
    struct passthrough passthrough;
    bool skip_open; /* the kernel opens files by itself (unopened.c) */
    pthread_mutex_t unopened_lock;
    struct inode *unopened[1024]; /* that have a reader, latest last; references held */
    unsigned unopened_next;
    struct inode_table *inodes;
    struct opened_lists opened;
    struct local_dirs *dirs;
    struct temp_names *temps;
    struct locks *locks; /* of fcntl and flock */
    struct history *history;
    struct staging_area *staging;
    struct behind behind;
    uint64_t staging_memory_max;
    pthread_mutex_t claims_lock;
    struct claim {
        struct inode *inode;
        int64_t made_ms;
    } claims[256];
    struct stale {
        int pid;
        int64_t when_ms;
    } stale[64]; /* threads that were sent to look a name up again, by pid */
    pthread_rwlock_t
        notify_lock; /* shared while the kernel is notified: its descriptor must not go meanwhile */
    bool mounted;    /* the kernel talks to us; under notify_lock */
    atomic_bool no_epoch; /* the kernel cannot drop all names at once */
    struct plus *plus;
    int64_t started_ns;
    struct fs_counters {
        _Atomic uint64_t lookups, opens, reads, read_bytes, writes, write_bytes, commits,
            commit_bytes, unlinks, renames, readdirs, recalls, errors, passthrough_opens, pushes;
    } counters;
};

static inline struct fs *fs_of(fuse_req_t req)
{
    return fuse_req_userdata(req);
}

/* What each worker thread keeps for its requests, freed when it ends (worker.c). */
char *worker_buffer(size_t size); /* at least so large; NULL without memory */
int worker_event(void);           /* an eventfd; -1 without one */
void worker_event_empty(void);    /* after it was set */

/* Interruptible waiting for one request; fs_cancel_end before the reply is sent. */
struct fs_cancel {
    struct mcfs_cancel cancel;
    fuse_req_t req;
    bool fired; /* under libfuse's lock of the request */
};
void fs_cancel_begin(struct fs_cancel *c, fuse_req_t req);
void fs_cancel_end(struct fs_cancel *c);

/* Replies with an error's errno, and logs those that a user should hear of. */
void fs_reply_error(fuse_req_t req, const struct mcfs_error *err);

/* The attributes that stat shows of an inode. */
void fs_fill_stat(struct fs *fs, const struct inode *inode, struct stat *st);

/* Modes and owners as the mount's options bend them. */
void fs_apply_options(const struct fs *fs, struct stat *st);

/* Milliseconds to seconds, cut to -o attr_timeout. */
double fs_timeout(const struct fs *fs, uint64_t ms);

/* Stable inode number of a key (or directory) of a tenant. */
uint64_t fs_ino(struct mcfs_slice tenant, struct mcfs_slice key, bool is_dir);

/* How long a directory's name may be cached: nobody leases directories, so only while no other node
 * is there. */
double fs_dir_timeout(const struct fs *fs);

/* How long its attributes may be: where other nodes are there, its name is looked up each time and
 * brings fresh ones along.  Those that the kernel asks for besides, to check permissions below an
 * open directory, may be this old, lest each look-up below it cost a second request. */
double fs_dir_attr_timeout(const struct fs *fs);

/* Fills in a reply for an inode of which the caller holds a kernel reference. */
void fs_fill_entry(struct fs *fs, struct inode *inode, double timeout, struct fuse_entry_param *e);

extern const struct fuse_lowlevel_ops fs_operations;

/* ---- operations, by file ---- */

/* lookup.c */
void fs_lookup(fuse_req_t req, fuse_ino_t parent, const char *name);
void fs_forget(fuse_req_t req, fuse_ino_t ino, uint64_t nlookup);
void fs_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *forgets);
void fs_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);

/* Entries of a directory were changed by this mount. */
void fs_touch_dir(struct fs *fs, struct inode *dir, int64_t now_ns);

/* What a name in a directory of keys is.  0 or an errno; *e is filled
 * in. */
int fs_resolve(struct fs *fs, struct inode *parent, const char *name, int pid,
               const struct mcfs_cancel *cancel, struct fuse_entry_param *e,
               struct mcfs_error *err);

/* setattr.c */
void fs_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr, int to_set,
                struct fuse_file_info *fi);

/* open.c */
void fs_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void fs_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
               struct fuse_file_info *fi);
void fs_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t rdev);
void fs_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void fs_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void fs_getlk(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, struct flock *lock);
void fs_setlk(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, struct flock *lock,
              int sleep);
void fs_flock(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, int op);
void fs_fsync(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi);

/* io.c */
void fs_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi);
void fs_write_buf(fuse_req_t req, fuse_ino_t ino, struct fuse_bufvec *in, off_t off,
                  struct fuse_file_info *fi);
/* Answers a READ straight from a file. */
#define SPLICE_MIN (32u << 10) /* bytes; below this a copy is cheaper than setting up a pipe */
void fs_reply_from_fd(fuse_req_t req, int fd, uint64_t at, size_t len);
void fs_lseek(fuse_req_t req, fuse_ino_t ino, off_t off, int whence, struct fuse_file_info *fi);

/* ranges.c */
void fs_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t off, off_t len,
                  struct fuse_file_info *fi);
void fs_copy_file_range(fuse_req_t req, fuse_ino_t ino_in, off_t off_in,
                        struct fuse_file_info *fi_in, fuse_ino_t ino_out, off_t off_out,
                        struct fuse_file_info *fi_out, size_t len, int flags);

/* names.c */
/* Appends the key that a name stands for in a directory that is about to be changed.  0, or -1 with
 * the errno of who would change a bad one. */
int fs_name_key(struct fs *fs, struct inode *parent, const char *name, struct mcfs_buf *key,
                struct mcfs_error *err);
void fs_unlink(fuse_req_t req, fuse_ino_t parent, const char *name);
void fs_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode);
void fs_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name);
void fs_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t newparent,
               const char *newname, unsigned flags);
void fs_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t newparent, const char *newname);
void fs_symlink(fuse_req_t req, const char *link, fuse_ino_t parent, const char *name);

/* readdir.c */
void fs_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void fs_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi);
void fs_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
                    struct fuse_file_info *fi);
void fs_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);

/* xattr.c */
void fs_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size);
void fs_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size);
void fs_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name, const char *value, size_t size,
                 int flags);
void fs_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name);

/* statfs.c */
void fs_statfs(fuse_req_t req, fuse_ino_t ino);

/* unopened.c: a READ without an OPEN before it. */
void unopened_read(fuse_req_t req, struct inode *inode, size_t size, uint64_t off);
/* The store is about to let go of a version: whoever has it open keeps it. */
void unopened_hold(void *arg, struct mcfs_slice tenant, struct mcfs_slice key, uint64_t version);
void unopened_free(struct fs *fs);

/* read_ahead.c: asks the kernel to read further ahead than it does by itself, where this process
 * may. */
void fs_widen_read_ahead(const struct fs *fs);

/* push.c: an object's bytes into the kernel's page cache before anybody asks for them. */
void fs_push(struct fs *fs, struct inode *inode, const void *data, size_t len);

/* invalidate.c: the mount's part in recalls. */
void fs_recall(void *arg, struct mcfs_slice tenant, struct mcfs_slice key, uint64_t version);
void fs_session_lost(void *arg);
/* Has the kernel look every name up again that it knows (where it can: Linux 6.16). */
void fs_forget_names(void *arg);
/* The node's store is about to evict a version, which may stay all the same: its attributes are
 * dropped, and names with fs_forget_names.  And it has evicted it: the pages go, too, and the name
 * where the kernel cannot drop all at once; that may wait for its directory. */
void fs_evicting(void *arg, struct mcfs_slice tenant, struct mcfs_slice key, uint64_t version);
void fs_evicted(void *arg, struct mcfs_slice tenant, struct mcfs_slice key, uint64_t version);
/* The same without what plus.h has to do with it; and waits until the kernel is done with what it
 * is doing under a directory's lock, by notifying it of a name that is not there. */
void fs_new_epoch(struct fs *fs);
void fs_await_directory(struct fs *fs, uint64_t nodeid, const char *no_name);
/* The mount is about to go. */
void fs_stop_notifying(struct fs *fs);

/* writer.c: publishing what was written.  The caller holds the writer's lock. */
int writer_commit(struct fs *fs, struct inode *w, bool sync, const struct mcfs_cancel *cancel,
                  struct mcfs_error *err);
/* Its last handle is gone and nothing is unpublished: it is the object that it was published as
 * from now on. */
void writer_finish(struct fs *fs, struct inode *w);
/* A writer inode for a key; base (may be NULL) is the object that it starts from. */
struct inode *writer_new(struct fs *fs, struct mcfs_slice tenant, struct mcfs_slice key, int pid,
                         const struct inode *base, const struct mcfs_cancel *cancel,
                         struct mcfs_error *err);

/* claims.c: writers made for a process that the kernel will send again in a moment (ESTALE makes it
 * look the name up anew).  A claim holds a reference; one that nobody takes within seconds is
 * dropped. */
void claim_add(struct fs *fs, struct inode *w);
void claim_take(struct fs *fs, struct inode *w);
void claims_sweep(struct fs *fs, bool all);

/* Whether a thread may be sent back to look a name up again (ESTALE): the kernel does that once, a
 * second time would be the program's to handle. */
bool stale_once(struct fs *fs, int pid);

/* views.c: the trees that are not keys: root, tenants/, snapshots/, .mooncakefs/. */
int view_lookup(struct fs *fs, struct inode *parent, const char *name,
                const struct mcfs_cancel *cancel, struct fuse_entry_param *e,
                struct mcfs_error *err);
/* Calls emit for each name. */
int view_list(struct fs *fs, struct inode *dir,
              void (*emit)(const char *name, enum inode_kind kind, uint64_t size, int64_t mtime_ns,
                           void *arg),
              void *arg, const struct mcfs_cancel *cancel, struct mcfs_error *err);
/* The content of a control file, malloc'ed; its length or -1. */
int64_t view_control_content(struct fs *fs, const struct inode *inode, char **data,
                             struct mcfs_error *err);
void fs_readlink(fuse_req_t req, fuse_ino_t ino);

#endif
