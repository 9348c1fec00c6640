/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_BACKENDS_FILES_MARKER_H
#define MCFS_BACKENDS_FILES_MARKER_H

/*
 * The file `format` of a file-per-key store, one line of text:
 *
 *   mooncakefs file per key, format 1, crc32c <8 hexadecimal digits of what stands before ",
 * crc32c">
 */

#include "common/buf.h"
#include <mooncakefs/error.h>

#define FILES_FORMAT 1u

void files_marker_put(struct mcfs_buf *b);

/* 0; or -1: INVALID_VERSION for a format that is newer than ours, else it is no marker. */
int files_marker_parse(const char *text, size_t len, struct mcfs_error *err);

#endif
