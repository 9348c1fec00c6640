/* SPDX-License-Identifier: Apache-2.0 */
#include "common/file.h"

#include "common/cleanup.h"

#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>

ssize_t mcfs_pread_full(int fd, void *buf, size_t len, uint64_t off)
{
    size_t done = 0;
    while (done < len) {
        ssize_t n = pread(fd, (char *)buf + done, len - done, (off_t)(off + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        if (n == 0)
            break;
        done += (size_t)n;
    }
    return (ssize_t)done;
}

int mcfs_pwrite_full(int fd, const void *buf, size_t len, uint64_t off)
{
    size_t done = 0;
    while (done < len) {
        ssize_t n = pwrite(fd, (const char *)buf + done, len - done, (off_t)(off + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        done += (size_t)n;
    }
    return 0;
}

int mcfs_write_full(int fd, const void *buf, size_t len)
{
    size_t done = 0;
    while (done < len) {
        ssize_t n = write(fd, (const char *)buf + done, len - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        done += (size_t)n;
    }
    return 0;
}

int mcfs_copy_range(int from, uint64_t from_off, int to, uint64_t to_off, uint64_t len)
{
    while (len > 0) {
        off_t in = (off_t)from_off, out = (off_t)to_off;
        ssize_t n = copy_file_range(from, &in, to, &out, len, 0);
        if (n <= 0) {
            if (n < 0 && errno == EINTR)
                continue;
            break;
        }
        from_off += (uint64_t)n;
        to_off += (uint64_t)n;
        len -= (uint64_t)n;
    }
    if (len == 0)
        return 0;

    /* Across file systems, or on one that cannot: through memory. */
    size_t chunk = 1 << 17;
    _cleanup_free_ char *buf = malloc(chunk);
    if (!buf)
        return -1;
    while (len > 0) {
        size_t want = len < chunk ? (size_t)len : chunk;
        ssize_t n = mcfs_pread_full(from, buf, want, from_off);
        if (n < 0)
            return -1;
        if ((size_t)n < want) {
            errno = EIO;
            return -1;
        }
        if (mcfs_pwrite_full(to, buf, want, to_off))
            return -1;
        from_off += want;
        to_off += want;
        len -= want;
    }
    return 0;
}

ssize_t mcfs_read_file(const char *path, void *buf, size_t cap, struct mcfs_error *err)
{
    _cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return mcfs_fail_errno(err, errno, "%s", path);
    ssize_t n = mcfs_pread_full(fd, buf, cap, 0);
    if (n < 0)
        return mcfs_fail_errno(err, errno, "%s", path);
    char more;
    if ((size_t)n == cap && mcfs_pread_full(fd, &more, 1, cap) > 0)
        return mcfs_fail_errno(err, EFBIG, "%s: more than %zu bytes", path, cap);
    return n;
}

ssize_t mcfs_read_file_alloc(const char *path, size_t max, char **data, struct mcfs_error *err)
{
    *data = NULL;
    _cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    if (fd < 0 || fstat(fd, &st))
        return mcfs_fail_errno(err, errno, "%s", path);
    if (st.st_size < 0 || (uint64_t)st.st_size > max)
        return mcfs_fail_errno(err, EFBIG, "%s: %lld bytes, at most %zu expected", path,
                               (long long)st.st_size, max);
    size_t len = (size_t)st.st_size;
    _cleanup_free_ char *buf = malloc(len + 1);
    if (!buf)
        return mcfs_fail_errno(err, ENOMEM, "%s", path);
    ssize_t n = mcfs_pread_full(fd, buf, len, 0);
    if (n < 0)
        return mcfs_fail_errno(err, errno, "%s", path);
    buf[n] = 0;
    *data = MCFS_STEAL(buf);
    return n;
}

/* Directory part of path, "." when there is none. */
static void parent_of(const char *path, char dir[PATH_MAX])
{
    const char *slash = strrchr(path, '/');
    size_t n = !slash ? 0 : slash == path ? 1 : (size_t)(slash - path);
    if (n == 0 || n >= PATH_MAX) {
        strcpy(dir, ".");
        return;
    }
    memcpy(dir, path, n);
    dir[n] = 0;
}

int mcfs_write_file(const char *path, const void *data, size_t len, mode_t mode, int durable,
                    struct mcfs_error *err)
{
    char temporary[PATH_MAX], dir[PATH_MAX];
    if ((size_t)snprintf(temporary, sizeof(temporary), "%s.tmp.%d.%lx", path, (int)getpid(),
                         (unsigned long)pthread_self()) >= sizeof(temporary))
        return mcfs_fail_errno(err, ENAMETOOLONG, "%s", path);
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
    if (fd < 0)
        return mcfs_fail_errno(err, errno, "%s", temporary);
    int failed = mcfs_write_full(fd, data, len) || (durable && fsync(fd));
    int errnum = errno;
    if (close(fd) && !failed) {
        failed = 1;
        errnum = errno;
    }
    if (!failed && rename(temporary, path)) {
        failed = 1;
        errnum = errno;
    }
    if (failed) {
        unlink(temporary);
        return mcfs_fail_errno(err, errnum, "%s", path);
    }
    parent_of(path, dir);
    return durable ? mcfs_sync_dir(dir, err) : 0;
}

DIR *mcfs_open_dir(int at, const char *path)
{
    int fd = openat(at, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    if (!dir && fd >= 0) {
        int errnum = errno;
        close(fd);
        errno = errnum;
    }
    return dir;
}

int mcfs_sync_dir(const char *path, struct mcfs_error *err)
{
    _cleanup_fd_ int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fsync(fd))
        return mcfs_fail_errno(err, errno, "%s", path);
    return 0;
}

int mcfs_make_dirs(const char *path, mode_t mode, struct mcfs_error *err)
{
    char part[PATH_MAX];
    size_t len = strlen(path);
    if (len == 0 || len >= sizeof(part))
        return mcfs_fail_errno(err, len ? ENAMETOOLONG : ENOENT, "%s", path);
    memcpy(part, path, len + 1);
    for (char *p = part + 1; *p; p++) {
        if (*p != '/')
            continue;
        *p = 0;
        if (mkdir(part, mode) && errno != EEXIST)
            return mcfs_fail_errno(err, errno, "%s", part);
        *p = '/';
    }
    struct stat st;
    if (mkdir(part, mode) && errno != EEXIST)
        return mcfs_fail_errno(err, errno, "%s", path);
    if (stat(part, &st))
        return mcfs_fail_errno(err, errno, "%s", path);
    if (!S_ISDIR(st.st_mode))
        return mcfs_fail_errno(err, ENOTDIR, "%s", path);
    return 0;
}

/* A killed owner's last threads hold its lock for a moment after it looks dead. */
static int lock_soon(int fd)
{
    struct timespec pause = {.tv_nsec = 10000000};
    for (int tries = 100;; tries--) {
        if (flock(fd, LOCK_EX | LOCK_NB) == 0)
            return 0;
        if (errno != EWOULDBLOCK || tries == 0)
            return -1;
        nanosleep(&pause, NULL);
    }
}

int mcfs_own_dir(const char *dir, struct mcfs_error *err)
{
    char path[PATH_MAX], pid[32] = "";
    if ((size_t)snprintf(path, sizeof(path), "%s/lock", dir) >= sizeof(path))
        return mcfs_fail_errno(err, ENAMETOOLONG, "%s", dir);
    _cleanup_fd_ int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0)
        return mcfs_fail_errno(err, errno, "%s", path);
    if (lock_soon(fd)) {
        if (errno != EWOULDBLOCK)
            return mcfs_fail_errno(err, errno, "%s", path);
        ssize_t n = mcfs_pread_full(fd, pid, sizeof(pid) - 1, 0);
        pid[n > 0 ? n : 0] = 0;
        pid[strcspn(pid, "\n")] = 0;
        return mcfs_fail(err, MCFS_FILE_LOCK_FAIL, "%s is in use by process %s", dir,
                         *pid ? pid : "(unknown)");
    }
    int n = snprintf(pid, sizeof(pid), "%d\n", (int)getpid());
    if (ftruncate(fd, 0) || mcfs_pwrite_full(fd, pid, (size_t)n, 0))
        return mcfs_fail_errno(err, errno, "%s", path);
    return mcfs_steal_fd(&fd);
}
