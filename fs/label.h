/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_FS_LABEL_H
#define MCFS_FS_LABEL_H

/*
 * A few bytes that describe a file and go where it goes: an extended attribute, because that is
 * hundreds of times cheaper than another file; on file systems without them, a file beside it,
 * "<name>.info".
 */

#include <mooncakefs/error.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define LABEL_SUFFIX ".info"

/* Labels the file at path, open as fd; replaces what was there.  0 or -1. */
int label_write(int fd, const char *path, const void *data, size_t len, struct mcfs_error *err);

/* Returns the label's length (at most cap), or -1 with errno ENODATA when there is none. */
ssize_t label_read(const char *path, void *buf, size_t cap);

/* Takes the label off a file that was at path when it was labelled. */
void label_remove(int fd, const char *path);

#endif
