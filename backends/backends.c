/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/backends.h"

#include "backends/file_per_key/file_per_key.h"
#include "backends/file_per_key/files.h"
#include "backends/offset/offset.h"
#include "common/cleanup.h"

#include <fcntl.h>
#include <fnmatch.h>
#include <string.h>
#include <sys/stat.h>

static const struct mcfs_backend_ops *const backends[] = {
    &mcfs_bucket_ops,
    &mcfs_offset_ops,
    &mcfs_file_per_key_ops,
};

const struct mcfs_backend_ops *mcfs_backend_find(const char *descriptor)
{
    for (size_t i = 0; i < MCFS_ARRAY_SIZE(backends); i++)
        if (strcmp(backends[i]->name, descriptor) == 0)
            return backends[i];
    return NULL;
}

static bool is_dir(int fd, const char *name)
{
    struct stat st;
    return fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode);
}

char *mcfs_backend_dir(const char *dir, struct mcfs_error *err)
{
    char *real = realpath(dir, NULL), *inner = NULL;
    struct stat st;
    if (!real || asprintf(&inner, "%s/backend", real) < 0) {
        mcfs_fail_errno(err, errno, "%s", dir);
        free(real);
        return NULL;
    }
    _cleanup_fd_ int fd = open(real, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool is_state = fd >= 0 && fstatat(fd, "format", &st, 0) == 0 && is_dir(fd, "backend");
    if (fd < 0) {
        mcfs_fail_errno(err, errno, "%s", dir);
        free(inner);
        inner = NULL;
    }
    free(is_state || fd < 0 ? real : inner);
    return is_state || fd < 0 ? inner : real;
}

/* The layout that a name in a directory speaks for, or NULL. */
static const struct mcfs_backend_ops *speaks_for(int fd, const char *name, const char *fsdir)
{
    static const char *const bucket[] = {"[0-9]*.bucket", "[0-9]*.meta", "[0-9]*.journal",
                                         "[0-9]*.sum"};
    if (strcmp(name, OFFSET_DATA) == 0 || strcmp(name, OFFSET_META) == 0)
        return &mcfs_offset_ops;
    if ((strcmp(name, fsdir) == 0 || strcmp(name, FILES_DIR) == 0) && is_dir(fd, name))
        return &mcfs_file_per_key_ops;
    for (size_t i = 0; i < MCFS_ARRAY_SIZE(bucket); i++)
        if (fnmatch(bucket[i], name, 0) == 0)
            return &mcfs_bucket_ops;
    return NULL;
}

const struct mcfs_backend_ops *mcfs_backend_recognise(const char *path, const char *fsdir,
                                                      struct mcfs_error *err)
{
    const struct mcfs_backend_ops *found = NULL;
    _cleanup_dir_ DIR *dir = opendir(path);
    struct dirent *d;
    if (!dir) {
        mcfs_fail_errno(err, errno, "%s", path);
        return NULL;
    }
    while ((errno = 0, d = readdir(dir))) {
        const struct mcfs_backend_ops *ops =
            speaks_for(dirfd(dir), d->d_name, fsdir && *fsdir ? fsdir : FILE_PER_KEY_FSDIR);
        if (ops && found && ops != found) {
            mcfs_fail(err, MCFS_INVALID_PARAMS,
                      "%s holds files of %s and of %s: say which one is meant", path, found->name,
                      ops->name);
            return NULL;
        }
        found = ops ? ops : found;
    }
    if (errno) {
        mcfs_fail_errno(err, errno, "%s", path);
        return NULL;
    }
    if (!found)
        mcfs_fail(err, MCFS_FILE_NOT_FOUND,
                  "%s is no offload directory: it has no *.bucket, no " OFFSET_DATA " and no %s/",
                  path, fsdir && *fsdir ? fsdir : FILE_PER_KEY_FSDIR);
    return found;
}

int mcfs_backend_fits(const struct mcfs_backend_ops *ops, const struct mcfs_backend_config *config,
                      struct mcfs_error *err)
{
    struct mcfs_error problem = MCFS_ERROR_INIT;
    const struct mcfs_backend_ops *found =
        mcfs_backend_recognise(config->dir, config->fsdir, &problem);
    if (found == ops || (!found && problem.code == MCFS_FILE_NOT_FOUND))
        return 0;
    if (found)
        return mcfs_fail(err, MCFS_INVALID_PARAMS,
                         "%s holds files of %s, not of %s: backend=%s is meant", config->dir,
                         found->name, ops->name, found->name);
    if (err)
        *err = problem;
    return -1;
}
