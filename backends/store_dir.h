/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_BACKENDS_STORE_DIR_H
#define MCFS_BACKENDS_STORE_DIR_H

/* The directory of a store. */

#include <mooncakefs/error.h>

/* Opens it; for writing it is made when it is absent, and owned (FILE_LOCK_FAIL, naming the pid,
 * when another process has it).  Sets what it comes to, for the caller to free and close, also when
 * it fails: the path without links, the directory's descriptor, the lock's. */
int store_dir_open(const char *dir, bool read_only, char **path, int *dir_fd, int *lock_fd,
                   struct mcfs_error *err);

#endif
