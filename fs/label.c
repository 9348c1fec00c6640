/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/label.h"

#include "common/file.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <sys/xattr.h>
#include <unistd.h>

#define NAME "user.mooncakefs.label"

static const char *beside(char out[PATH_MAX], const char *path)
{
    snprintf(out, PATH_MAX, "%s" LABEL_SUFFIX, path);
    return out;
}

int label_write(int fd, const char *path, const void *data, size_t len, struct mcfs_error *err)
{
    char info[PATH_MAX];
    if (fsetxattr(fd, NAME, data, len, 0) == 0)
        return 0;
    /* ENOSPC: no room in the inode's own block, which says nothing of the disk. */
    if (errno != EOPNOTSUPP && errno != ENOSPC && errno != E2BIG)
        return mcfs_fail_errno(err, errno, "%s", path);
    return mcfs_write_file(beside(info, path), data, len, 0600, false, err);
}

ssize_t label_read(const char *path, void *buf, size_t cap)
{
    char info[PATH_MAX];
    ssize_t n = getxattr(path, NAME, buf, cap);
    if (n >= 0)
        return n;
    n = mcfs_read_file(beside(info, path), buf, cap, NULL);
    if (n < 0)
        errno = ENODATA;
    return n;
}

void label_remove(int fd, const char *path)
{
    char info[PATH_MAX];
    if (fd < 0 || fremovexattr(fd, NAME))
        unlink(beside(info, path));
}
