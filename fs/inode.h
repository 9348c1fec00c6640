/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_FS_INODE_H
#define MCFS_FS_INODE_H

/*
 * What the kernel knows by a nodeid.  An inode lives while the kernel refers to it (look-ups not
 * yet forgotten) or the daemon does (open handles, an operation under way).
 *
 * Locks: the table's stripe guards counts, names and the table's links; an inode's own lock guards
 * the rest of what may change and is taken first.
 */

#include "fs/staging.h"
#include <mooncakefs/object.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct lock_file;

enum inode_kind {
    INODE_ROOT,
    INODE_DIR,       /* of keys: keys/, tenants/<t>/ and everything below */
    INODE_FILE,      /* one version of an object */
    INODE_WRITER,    /* an object being written */
    INODE_TEMP,      /* a temporary name, private to this mount */
    INODE_TENANTS,   /* tenants/ */
    INODE_SNAPSHOTS, /* snapshots/ */
    INODE_SNAPSHOT,  /* snapshots/<id>/ */
    INODE_SNAPFILE,  /* a file in it */
    INODE_LATEST,    /* snapshots/latest */
    INODE_CONTROL,   /* .mooncakefs/ */
    INODE_CONTROL_FILE,
    INODE_HISTORY,          /* history/ */
    INODE_HISTORY_SNAPSHOT, /* history/<id>/ */
    INODE_HISTORY_DIR,      /* below; its tenant is "<id>/<tenant>" */
    INODE_HISTORY_FILE,     /* an object as it was; likewise */
};

/* An inode's name.  Renaming puts another in its place; the old one lives as long as the inode, for
 * those who are reading it. */
struct inode_name {
    struct inode_name *older;
    struct mcfs_slice tenant; /* "" outside of keys */
    struct mcfs_slice
        key; /* DIR: prefix of its children's keys; SNAPSHOT: id; *FILE: key or name */
    char bytes[];
};

struct inode {
    _Atomic(enum inode_kind) kind;
    uint64_t kernel_refs; /* look-ups to be forgotten */
    uint32_t refs;        /* of the daemon */
    bool linked;          /* found by the table */
    struct inode *next;   /* with the same name: other versions and writers; or nameless ones, */
    struct inode *prev;   /* which the table keeps to free them with the rest */
    _Atomic(struct inode_name *) name;
    atomic_uint stripe;       /* of the table, by the name */
    _Atomic uint64_t version; /* FILE; 0 elsewhere */

    pthread_mutex_t lock;
    uint64_t size;
    struct mcfs_attr attr;
    _Atomic int64_t lease_until_ms; /* mcfs_mono_ms() time; DIR: until then its mtime need not be
                                       asked for */
    uint32_t changes;               /* DIR: of its entries by this mount */
    int64_t atime_ns;
    atomic_bool gone;  /* unlinked or replaced while in use */
    atomic_bool moved; /* FILE: its key went to another name, and this version was not the one */

    _Atomic(struct lock_file *) locks; /* shared by the key's inodes; NULL: never locked */

    /* How its open files get their bytes: from a backing file or through the page cache, never
     * both. */
    int backing_id; /* 0: none */
    uint32_t passing_opens, cached_opens;
    bool pushed; /* into the page cache, at its first open */
    /* FILE that the kernel opens by itself (unopened.c) */
    struct replica_reader *held;
    uint32_t held_users;
    bool pinned; /* `held` stays: the store is about to let go of the bytes */
    /* CONTROL_FILE that the kernel opens by itself: what it said when it was looked up */
    char *content;

    /* WRITER and TEMP */
    struct staging *staging;
    int pid;             /* thread that opened it */
    atomic_uint opens;   /* handles on it */
    atomic_uint writing; /* of those, ones for writing that have not been closed since they wrote */
    atomic_bool dirty;   /* holds what is not published */
    atomic_bool synced;  /* a temporary name's content survives power loss */
    atomic_bool refused; /* what is dirty could not be published, and who closed it was told */
    atomic_bool claimed; /* made for an open or truncate that comes back in a moment */
    bool no_replace;
    _Atomic uint64_t base_version; /* of the object that it started from, 0: none */
    _Atomic uint64_t published;    /* version that it was last published as, 0: never */
};

struct inode_table;

struct inode_table *inode_table_new(void);
void inode_table_free(struct inode_table *t);

struct inode *inode_root(struct inode_table *t);

/* The inode with this identity, made when it is new; its daemon reference count is raised.  `init`
 * (may be NULL) fills in a new one before others can find it.  NULL without memory. */
struct inode *inode_get(struct inode_table *t, enum inode_kind kind, struct mcfs_slice tenant,
                        struct mcfs_slice key, uint64_t version,
                        void (*init)(struct inode *inode, void *arg), void *arg);

/* A new one that is not yet in the table under a version (writers). */
struct inode *inode_make(struct inode_table *t, enum inode_kind kind, struct mcfs_slice tenant,
                         struct mcfs_slice key);

/* The inode if it is there; daemon reference raised. */
struct inode *inode_find(struct inode_table *t, enum inode_kind kind, struct mcfs_slice tenant,
                         struct mcfs_slice key, uint64_t version);

/* A writer that a process has open (and has not closed: the kernel tells of the last descriptor's
 * end later) and that holds what the object of this version holds: for that process it is the file.
 * Daemon reference raised.  *any (may be NULL): some process has the key open for writing. */
struct inode *inode_find_open_writer(struct inode_table *t, struct mcfs_slice tenant,
                                     struct mcfs_slice key, int pid, uint64_t version, bool *any);

/* A writer of a key with something unpublished (or just claimed) that belongs to the process of
 * thread `pid`; pid 0: to any. */
struct inode *inode_find_writer(struct inode_table *t, struct mcfs_slice tenant,
                                struct mcfs_slice key, int pid);

/* Calls fn for each inode of a key (its own lock is not held, the stripe's is). */
void inode_for_key(struct inode_table *t, struct mcfs_slice tenant, struct mcfs_slice key,
                   void (*fn)(struct inode *inode, void *arg), void *arg);

/* Calls fn for every inode, a daemon reference held, no lock held. */
void inode_for_all(struct inode_table *t, void (*fn)(struct inode *inode, void *arg), void *arg);

/* Gives an inode another identity (kind, key, version) in one step. */
int inode_rename(struct inode_table *t, struct inode *inode, enum inode_kind kind,
                 struct mcfs_slice key, uint64_t version);

/* Takes it out of the table: nobody finds it by name any more. */
void inode_unlink(struct inode_table *t, struct inode *inode);

/* The kernel has got a reference with a reply; turns a daemon reference into it. */
void inode_give_to_kernel(struct inode_table *t, struct inode *inode);
void inode_forget(struct inode_table *t, struct inode *inode, uint64_t count);

struct inode *inode_ref(struct inode_table *t, struct inode *inode);
void inode_unref(struct inode_table *t, struct inode *inode);

uint64_t inode_count(struct inode_table *t);

static inline struct mcfs_slice inode_tenant(const struct inode *inode)
{
    return atomic_load(&inode->name)->tenant;
}

static inline struct mcfs_slice inode_key(const struct inode *inode)
{
    return atomic_load(&inode->name)->key;
}

static inline uint64_t inode_nodeid(const struct inode *inode)
{
    return inode->kind == INODE_ROOT ? 1 : (uint64_t)(uintptr_t)inode;
}

static inline struct inode *inode_from(struct inode_table *t, uint64_t nodeid)
{
    return nodeid == 1 ? inode_root(t) : (struct inode *)(uintptr_t)nodeid;
}

static inline bool inode_kind_is_dir(enum inode_kind kind)
{
    switch (kind) {
    case INODE_ROOT:
    case INODE_DIR:
    case INODE_TENANTS:
    case INODE_SNAPSHOTS:
    case INODE_SNAPSHOT:
    case INODE_CONTROL:
    case INODE_HISTORY:
    case INODE_HISTORY_SNAPSHOT:
    case INODE_HISTORY_DIR:
        return true;
    default:
        return false;
    }
}

static inline bool inode_is_dir(const struct inode *inode)
{
    return inode_kind_is_dir(inode->kind);
}

#endif
