/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_FS_DIR_LOG_H
#define MCFS_FS_DIR_LOG_H

/*
 * The file <state>/directories: what local_dirs knows, as a log.  A record is
 *
 *     u32 length of the rest, u32 CRC-32C of the rest, both little-endian; then MessagePack
 *     [tenant, prefix, kept?, has attributes?, mode, uid, gid, mtime_ns]
 *
 * and replaces what an earlier one said of the same directory.  Appending survives the death of the
 * process, not a power cut before the next rewriting; a torn or damaged record ends the reading.
 */

#include <mooncakefs/error.h>
#include <mooncakefs/object.h>
#include <stdbool.h>
#include <stddef.h>

struct mcfs_buf;

struct dir_record {
    struct mcfs_slice tenant, prefix;
    bool kept, has_attr; /* neither: the directory is forgotten */
    struct mcfs_attr attr;
};

/* Appends a record's bytes to a buffer. */
void dir_record_put(struct mcfs_buf *b, const struct dir_record *r);

/* Calls fn with each record until one is torn or damaged or fn fails; returns the bytes that were
 * fine.  Slices point into data. */
size_t dir_records_read(const void *data, size_t len,
                        int (*fn)(const struct dir_record *r, void *arg), void *arg);

struct dir_log;

/* Reads the file at path (absent: nothing) and opens it for appending.  What stands behind a
 * damaged record is kept in <path>.damaged, and a warning says so.  NULL with err on failure. */
struct dir_log *dir_log_open(const char *path, int (*fn)(const struct dir_record *r, void *arg),
                             void *arg, struct mcfs_error *err);
void dir_log_close(struct dir_log *l);

/* Appends one record. */
int dir_log_append(struct dir_log *l, const struct dir_record *r, struct mcfs_error *err);

/* Records since the last rewriting. */
size_t dir_log_records(const struct dir_log *l);

/* Replaces the whole file by `records`, the bytes of n records, durably. */
int dir_log_rewrite(struct dir_log *l, const struct mcfs_buf *records, size_t n,
                    struct mcfs_error *err);

#endif
