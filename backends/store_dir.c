/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/store_dir.h"

#include "common/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>

int store_dir_open(const char *dir, bool read_only, char **path, int *dir_fd, int *lock_fd,
                   struct mcfs_error *err)
{
    if (!read_only && mcfs_make_dirs(dir, 0755, err))
        return -1;
    *path = realpath(dir, NULL);
    if (!*path || (*dir_fd = open(*path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0)
        return mcfs_fail_errno(err, errno, "%s", dir);
    if (!read_only && (*lock_fd = mcfs_own_dir(*path, err)) < 0)
        return -1;
    return 0;
}
