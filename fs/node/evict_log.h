/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_FS_NODE_EVICT_LOG_H
#define MCFS_FS_NODE_EVICT_LOG_H

/*
 * What a node is about to evict, written down before the master is asked (`evicting` in the state
 * directory; docs/formats.md).  The master's answer and the removal from the store are two steps:
 * a node that dies between them would report the bytes as its own again.  So its next process says
 * with its inventory which objects these were, and the master decides.  So does this one when an
 * answer did not come.
 *
 * The caller locks.
 */

#include "common/buf.h"
#include <mooncakefs/error.h>
#include <mooncakefs/object.h>

struct evict_name {
    struct mcfs_slice tenant, key;
    uint64_t version;
};

/* Appends a record: its length, its CRC-32C, and MessagePack. */
void evict_record_put(struct mcfs_buf *b, const struct evict_name *name);

/* Calls fn for each whole record until it returns non-zero; the slices point into data.  Returns
 * the bytes that were understood: a record that was cut short ends the log, as nobody had been
 * asked about it yet. */
size_t evict_records_read(const void *data, size_t len,
                          int (*fn)(const struct evict_name *name, void *arg), void *arg);

struct evict_log;

/* Opens or makes the file and reads what the last process left. */
struct evict_log *evict_log_open(const char *path, struct mcfs_error *err);
void evict_log_free(struct evict_log *l);

/* What nobody knows of whether the master has withdrawn it: left by the last process, or kept by
 * this one.  Copies the names; until the log is cleared. */
int evict_log_keep(struct evict_log *l, const struct evict_name *names, size_t n);
bool evict_log_has(struct evict_log *l, struct mcfs_slice tenant, struct mcfs_slice key,
                   uint64_t version);
size_t evict_log_left(const struct evict_log *l); /* how many there are */

/* Appends whole records, durably. */
int evict_log_append(struct evict_log *l, const struct mcfs_buf *records, struct mcfs_error *err);

/* Bytes in the file. */
uint64_t evict_log_bytes(const struct evict_log *l);

/* Everything in it is settled, and durably so: empties it. */
int evict_log_clear(struct evict_log *l, struct mcfs_error *err);

#endif
