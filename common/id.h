/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_COMMON_ID_H
#define MCFS_COMMON_ID_H

#include <mooncakefs/error.h>
#include <mooncakefs/object.h>

#define MCFS_ID_TEXT_MAX 48 /* two decimal u64, '-', NUL */

/* A new random id (getrandom). */
struct mcfs_id mcfs_id_random(void);

/* Writes "<u64>-<u64>" into text (at least MCFS_ID_TEXT_MAX bytes) and returns it. */
const char *mcfs_id_format(struct mcfs_id id, char *text);

/* Parses what mcfs_id_format writes; returns 0 or -1. */
int mcfs_id_parse(struct mcfs_slice text, struct mcfs_id *id);

/* The id kept in file `path`: read, or made and written durably when the file is absent.  A file
 * that holds anything else is an error that names it. */
int mcfs_id_load_or_create(const char *path, struct mcfs_id *id, struct mcfs_error *err);

#endif
