/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_FS_STAGING_H
#define MCFS_FS_STAGING_H

/*
 * The content of an object that is being written: in memory while it is small, in a file of the
 * state directory once it is not, so that a large object can become a bucket by renaming that file.
 * What it starts from (when an object is changed rather than written anew) is copied in at the
 * first change only.
 *
 * The caller locks.
 */

#include "fs/node/node.h"

struct staging;
struct staging_area;

/* Empty, with its file (when it comes to that) in `area`, which outlives it; from `memory_max`
 * bytes on it is a file. */
struct staging *staging_new(struct staging_area *area, uint64_t memory_max, struct mcfs_error *err);

/* Drops the content and the file. */
void staging_free(struct staging *s);

/* Starts from an object's content; takes the reader over. */
void staging_set_base(struct staging *s, struct replica_reader *base, uint64_t size);

uint64_t staging_size(const struct staging *s);

/* Returns the count (0 at the end) or -1. */
int64_t staging_read(struct staging *s, void *buf, size_t len, uint64_t off,
                     const struct mcfs_cancel *cancel, struct mcfs_error *err);
int staging_write(struct staging *s, const void *data, size_t len, uint64_t off,
                  const struct mcfs_cancel *cancel, struct mcfs_error *err);
/* Whether a write only adds to what is in memory, and so waits for nothing. */
bool staging_stays_in_memory(const struct staging *s, size_t len, uint64_t off);

/* Whether a write may be acknowledged before it is made: it waits for nothing but this machine's
 * own disk, and is long enough for its writer to get the next one ready meanwhile. */
bool staging_writes_behind(const struct staging *s, size_t len, uint64_t off);

/* Makes a write that has been acknowledged.  Its failure is told by each later call that writes or
 * would publish, until the content is truncated to nothing. */
void staging_write_behind(struct staging *s, const void *data, size_t len, uint64_t off);

int staging_truncate(struct staging *s, uint64_t size, const struct mcfs_cancel *cancel,
                     struct mcfs_error *err);

/* Makes a range zeros, as far as the content goes. */
int staging_zero(struct staging *s, uint64_t off, uint64_t len, const struct mcfs_cancel *cancel,
                 struct mcfs_error *err);

/* SEEK_DATA and SEEK_HOLE; -1 with ENXIO past the end. */
int64_t staging_seek(struct staging *s, uint64_t off, bool hole, struct mcfs_error *err);

/* Fills in where a put finds the bytes (data or staging_path, size, checksum when it is known). */
int staging_describe(struct staging *s, struct node_put *put, const struct mcfs_cancel *cancel,
                     struct mcfs_error *err);

/* The put has used the file up: the content is the published object from now on, read through
 * `base`. */
void staging_published(struct staging *s, struct replica_reader *base);

/* Makes sure that the content is in a file, and labels it (staging_area.h): from now on it survives
 * the process's death. */
int staging_label(struct staging *s, const struct mcfs_buf *label, struct mcfs_error *err);

/* What staging_label has kept survives power loss from now on.  0 or -1. */
int staging_sync(struct staging *s, struct mcfs_error *err);

/* Takes the label off. */
void staging_unlabel(struct staging *s);

/* Takes a file that was labelled as the content (after a restart). */
struct staging *staging_adopt(struct staging_area *area, const char *path, uint64_t memory_max,
                              struct mcfs_error *err);

/* Leaves the file where it is and frees the rest. */
void staging_leave(struct staging *s);

#endif
