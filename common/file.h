/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_COMMON_FILE_H
#define MCFS_COMMON_FILE_H

/* Whole reads and writes, and files that are replaced atomically. */

#include <dirent.h>
#include <mooncakefs/error.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Reads exactly len bytes at off unless the file ends; returns the count or -1 with errno set. */
ssize_t mcfs_pread_full(int fd, void *buf, size_t len, uint64_t off);

/* Writes all of it or returns -1 with errno set. */
int mcfs_pwrite_full(int fd, const void *buf, size_t len, uint64_t off);
int mcfs_write_full(int fd, const void *buf, size_t len);

/* Copies len bytes between files (copy_file_range where the kernel can, else through memory); a
 * source that ends early is EIO.  Returns 0 or -1 with errno set. */
int mcfs_copy_range(int from, uint64_t from_off, int to, uint64_t to_off, uint64_t len);

/* Reads a small file into buf; at most cap bytes, more is an error.  Returns the length or -1. */
ssize_t mcfs_read_file(const char *path, void *buf, size_t cap, struct mcfs_error *err);

/* Reads a file of any size up to max into malloc'ed memory with a NUL behind it; the caller frees
 * *data.  Returns the length or -1. */
ssize_t mcfs_read_file_alloc(const char *path, size_t max, char **data, struct mcfs_error *err);

/* Replaces path by a file holding data: temporary name, write, (durable: fsync,) rename, (durable:
 * fsync of the directory).  Readers see the old file or the new one. */
int mcfs_write_file(const char *path, const void *data, size_t len, mode_t mode, int durable,
                    struct mcfs_error *err);

/* Opens a directory below another one (AT_FDCWD: the current one); a symbolic link is none.  NULL
 * with errno set. */
DIR *mcfs_open_dir(int at, const char *path);

/* fsync of a directory, so that names in it survive power loss. */
int mcfs_sync_dir(const char *path, struct mcfs_error *err);

/* mkdir -p; a component that is there already is fine. */
int mcfs_make_dirs(const char *path, mode_t mode, struct mcfs_error *err);

/*
 * Makes this process the owner of directory dir: locks dir/lock (flock, released by the kernel when
 * the process dies) and writes the pid into it.  Returns a descriptor that holds the lock until it
 * is closed, or -1 (FILE_LOCK_FAIL, naming the owner's pid).  The lock is not inherited across
 * fork+exec.
 */
int mcfs_own_dir(const char *dir, struct mcfs_error *err);

#endif
