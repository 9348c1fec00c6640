/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_COMMON_RECORD_LOG_H
#define MCFS_COMMON_RECORD_LOG_H

/*
 * A file of records (record.h) of which a later one replaces what an earlier one said, so that it
 * is appended to and now and then written anew.  Appending survives the death of the process, not a
 * power cut before the next record_log_sync or durable rewriting; a torn or damaged record ends the
 * reading.
 *
 * One process has the file; the caller locks.
 */

#include "common/record.h"

#include <mooncakefs/error.h>
#include <stdbool.h>

struct record_log;

/* Calls fn with the content of each record until one is torn or damaged or fn refuses it; returns
 * the bytes that were fine.  What fn reads points into data. */
size_t records_read(const void *data, size_t len, bool (*fn)(struct mp_reader *content, void *arg),
                    void *arg);

/* Reads the file at path (absent: nothing) and opens it for appending.  What stands behind a
 * damaged record is kept in <path>.damaged, and a warning says so.  NULL with err on failure. */
struct record_log *record_log_open(const char *path,
                                   bool (*fn)(struct mp_reader *content, void *arg), void *arg,
                                   struct mcfs_error *err);
void record_log_close(struct record_log *l);

/* Appends one record; 0 or -1, and then nothing has been appended. */
int record_log_append(struct record_log *l, const struct mcfs_buf *record, struct mcfs_error *err);

/* What has been appended survives a power cut from now on.  0 or -1. */
int record_log_sync(struct record_log *l, struct mcfs_error *err);

/* Records since the last rewriting. */
size_t record_log_count(const struct record_log *l);

/* Replaces the whole file by `records`, the bytes of n records; durable: a power cut leaves the old
 * file or the new one. */
int record_log_rewrite(struct record_log *l, const struct mcfs_buf *records, size_t n, bool durable,
                       struct mcfs_error *err);

#endif
