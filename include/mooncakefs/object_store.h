/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MOONCAKEFS_OBJECT_STORE_H
#define MOONCAKEFS_OBJECT_STORE_H

/*
 * Where snapshots live: a flat map of '/'-separated names to byte strings, kept in a local
 * directory or an S3 bucket.  A name is either absent or whole: nobody ever sees a value that is
 * half written.
 *
 * Thread safety: every function may be called from any thread; a put stream belongs to one thread.
 */

#include <mooncakefs/error.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct mcfs_object_store;
struct mcfs_object_store_put;

struct mcfs_object_info {
    const char *name; /* relative to the store's root */
    uint64_t size;    /* bytes */
    int64_t mtime_ns;
};

/* Called for each name in ascending byte order; return false to stop. */
typedef bool (*mcfs_object_list_fn)(const struct mcfs_object_info *info, void *arg);

/* Which remains of interrupted writes go: temporary files, empty folders, parts of uploads. */
struct mcfs_object_sweep {
    const char *prefix;
    int64_t before_ns; /* of what nothing was written to since then (ns since the Unix epoch) */
    /* Of what this approves of; name: the value's, perhaps with more behind it, or a folder's with
     * a '/' behind it. */
    bool (*may_go)(const char *name, void *arg);
    void *arg;
    uint32_t removed; /* raised by what went, but for folders */
};

struct mcfs_object_store_ops {
    const char *name; /* "local", "s3" */

    /* Bytes worth fetching at once where each request takes long; 0 where it does not. */
    uint32_t read_ahead_bytes;

    /* Streams a value in: begin, any number of writes, then commit (durable and visible, replacing
     * what was there) or abort.  commit and abort free the stream. */
    struct mcfs_object_store_put *(*put_begin)(struct mcfs_object_store *s, const char *name,
                                               struct mcfs_error *err);
    int (*put_write)(struct mcfs_object_store_put *p, const void *data, size_t len,
                     struct mcfs_error *err);
    int (*put_commit)(struct mcfs_object_store_put *p, struct mcfs_error *err);
    void (*put_abort)(struct mcfs_object_store_put *p);

    /* Reads len bytes at off; returns the count, short only at the end of the value, or -1
     * (FILE_NOT_FOUND when the name is absent). */
    ssize_t (*read)(struct mcfs_object_store *s, const char *name, uint64_t off, void *buf,
                    size_t len, struct mcfs_error *err);

    int (*stat)(struct mcfs_object_store *s, const char *name, struct mcfs_object_info *info,
                struct mcfs_error *err);

    /* Every name that starts with prefix. */
    int (*list)(struct mcfs_object_store *s, const char *prefix, mcfs_object_list_fn fn, void *arg,
                struct mcfs_error *err);

    /* Removing an absent name is success. */
    int (*remove)(struct mcfs_object_store *s, const char *name, struct mcfs_error *err);

    /* Removes what interrupted writes left below a prefix, which is no value and is not listed. */
    int (*sweep)(struct mcfs_object_store *s, struct mcfs_object_sweep *sweep,
                 struct mcfs_error *err); /* NULL: the store keeps no such remains */

    /* Makes the caller the only one that owns a folder (a name with a '/' behind it) until the
     * descriptor that is returned is closed or its process ends; the folder is made when absent.
     * -1: it has an owner (FILE_LOCK_FAIL), or the store cannot tell.  NULL: it never can. */
    int (*own)(struct mcfs_object_store *s, const char *folder, struct mcfs_error *err);

    void (*close)(struct mcfs_object_store *s);
};

/* Every store embeds this as its first member. */
struct mcfs_object_store {
    const struct mcfs_object_store_ops *ops;
};

#endif
