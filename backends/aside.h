/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_BACKENDS_ASIDE_H
#define MCFS_BACKENDS_ASIDE_H

#include <stdbool.h>

/* Where a file that is not understood goes: `dir`/lost+found, under its last name, with a number
 * behind it when that is taken. */

/* Renames `file` (relative to dir) into it and says so, and why, in the log.  Returns whether that
 * could be done. */
bool set_file_aside(const char *dir, const char *file, const char *why);

/* Keeps a file's present bytes there by a hard link, for a file that is about to be replaced. */
bool keep_file_aside(const char *dir, const char *file, const char *why);

#endif
