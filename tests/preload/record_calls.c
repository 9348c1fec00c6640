/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes down what a process does to the files below a directory, in order and with the bytes, so
 * that what a power cut leaves can be made of any part of it (tests/e2e/power_cut.py).  MCFS_RECORD
 * names the file that it goes to, MCFS_RECORD_DIR the directory.  The process says what it was told
 * by record_mark.
 *
 * MCFS_FAIL_AT makes the n-th of these calls on DIRECTORY/store fail in the way that MCFS_FAIL_HOW
 * names: enospc, eio, or short (a write of half the bytes); calls that cannot fail so are not
 * counted.
 *
 * io_uring would pass all this by: it is made to be refused (ENOSYS), so that the stores use their
 * plain engine.
 *
 * A record: type, length of the path, of the second path and of the data, inode, offset or size,
 * second number; then the paths and the data.  All calls are made one after the other.
 */
#undef _FILE_OFFSET_BITS /* both names of each call are made here */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

struct head {
    uint32_t type, path_len, other_len, data_len;
    uint64_t ino, a, b;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const char *root;
static int out = -1;
static long fail_at, made;
static char fail_how; /* 'n' for enospc, else the first letter; 0: nothing fails */

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("MCFS_RECORD");
    root = getenv("MCFS_RECORD_DIR");
    const char *at = getenv("MCFS_FAIL_AT"), *how = getenv("MCFS_FAIL_HOW");
    fail_at = at ? atol(at) : 0;
    fail_how = how ? (strcmp(how, "enospc") == 0 ? 'n' : how[0]) : 0; /* e: EIO, s: short */
    if (path && root)
        out = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC,
                           0644);
}

int io_uring_queue_init_params(unsigned entries, void *ring, void *params)
{
    (void)entries, (void)ring, (void)params;
    return -ENOSYS;
}

static void put(struct head h, const char *path, const char *other, const void *data)
{
    struct iovec iov[] = {{&h, sizeof(h)},
                          {(void *)(uintptr_t)path, h.path_len = path ? strlen(path) : 0},
                          {(void *)(uintptr_t)other, h.other_len = other ? strlen(other) : 0},
                          {(void *)(uintptr_t)data, h.data_len}};
    size_t all = sizeof(h) + h.path_len + h.other_len + h.data_len;
    if (out >= 0 && syscall(SYS_writev, out, iov, 4) != (long)all)
        abort();
}

/* The path below the root, or NULL. */
static const char *below(int dir, const char *path, char *buf)
{
    char link[64];
    size_t len = root ? strlen(root) : 0, n = 0;
    if (!root)
        return NULL;
    if (path[0] != '/') {
        snprintf(link, sizeof(link), dir == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", dir);
        long got = syscall(SYS_readlinkat, AT_FDCWD, link, buf, 4000);
        n = got > 0 ? (size_t)got : 0;
        buf[n++] = '/';
    }
    snprintf(buf + n, 4096, "%s", path);
    return strncmp(buf, root, len) == 0 && buf[len] == '/' ? buf + len + 1 : NULL;
}

/* The inode of a file below the root, and its name until the next call; or 0. */
static uint64_t inode_of(int fd, struct stat *st, const char **name)
{
    static char buf[8192]; /* under the lock */
    char link[64];
    size_t len = root ? strlen(root) : 0;
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    long got = root ? syscall(SYS_readlinkat, AT_FDCWD, link, buf, 4000) : -1;
    *name = NULL;
    if (got < (long)len || memcmp(buf, root, len) != 0 || fstat(fd, st))
        return 0;
    buf[got] = 0;
    *name = buf + len + (buf[len] == '/');
    return st->st_ino;
}

enum injected { NOTHING, ERROR, SHORT };
enum call { WRITES, NEEDS_ROOM, FLUSHES, OTHER };

/* What is to become of this call on a name below the root, or NULL; under the lock. */
static enum injected inject(enum call call, const char *name)
{
    if (!name || strncmp(name, "store", 5) != 0)
        return NOTHING;
    bool can = fail_how == 's'   ? call == WRITES
               : fail_how == 'n' ? call == WRITES || call == NEEDS_ROOM
                                 : fail_how != 0;
    if (!can || ++made != fail_at)
        return NOTHING;
    errno = fail_how == 'n' ? ENOSPC : EIO;
    return fail_how == 's' ? SHORT : ERROR;
}

void record_mark(const char *text)
{
    pthread_mutex_lock(&lock);
    put((struct head){.type = 'N'}, text, NULL, NULL);
    pthread_mutex_unlock(&lock);
}

static int do_open(int dir, const char *path, int flags, mode_t mode)
{
    char buf[8192];
    struct stat st;
    pthread_mutex_lock(&lock);
    const char *name = below(dir, path, buf);
    bool was = syscall(SYS_faccessat, dir, path, F_OK) == 0;
    int fd = -1;
    if (inject(flags & O_CREAT && !was ? NEEDS_ROOM : OTHER, name) == NOTHING)
        fd = (int)syscall(SYS_openat, dir, path, flags, mode);
    int errnum = errno;
    if (fd >= 0 && name && fstat(fd, &st) == 0) {
        if (flags & O_CREAT && !was)
            put((struct head){.type = 'C', .ino = st.st_ino}, name, NULL, NULL);
        else if (flags & O_TRUNC)
            put((struct head){.type = 'T', .ino = st.st_ino}, NULL, NULL, NULL);
    }
    pthread_mutex_unlock(&lock);
    errno = errnum;
    return fd;
}

#define OPEN(name)                                                                                 \
    int name(const char *path, int flags, ...)                                                     \
    {                                                                                              \
        va_list list;                                                                              \
        va_start(list, flags);                                                                     \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(list, mode_t) : 0;                    \
        va_end(list);                                                                              \
        return do_open(AT_FDCWD, path, flags, mode);                                               \
    }
#define OPENAT(name)                                                                               \
    int name(int dir, const char *path, int flags, ...)                                            \
    {                                                                                              \
        va_list list;                                                                              \
        va_start(list, flags);                                                                     \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(list, mode_t) : 0;                    \
        va_end(list);                                                                              \
        return do_open(dir, path, flags, mode);                                                    \
    }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

static ssize_t do_write(int fd, const struct iovec *iov, int count, off64_t off, bool at)
{
    struct stat st;
    const char *name;
    pthread_mutex_lock(&lock);
    uint64_t ino = inode_of(fd, &st, &name);
    if (ino && !at)
        off = syscall(SYS_fcntl, fd, F_GETFL) & O_APPEND ? st.st_size
                                                         : syscall(SYS_lseek, fd, 0, SEEK_CUR);
    enum injected how = inject(WRITES, ino ? name : NULL);
    struct iovec less;
    if (how == SHORT && count > 0) { /* some of the first piece only */
        less = (struct iovec){iov->iov_base, iov->iov_len / 2 + 1};
        less.iov_len = less.iov_len < iov->iov_len ? less.iov_len : iov->iov_len;
        iov = &less;
        count = 1;
    }
    ssize_t n = how == ERROR ? -1
                : at         ? syscall(SYS_pwritev, fd, iov, count, off, 0)
                             : syscall(SYS_writev, fd, iov, count);
    int errnum = errno;
    for (int i = 0, left = (int)n; ino && i < count && left > 0; i++) {
        uint32_t len = (uint32_t)((int)iov[i].iov_len < left ? (int)iov[i].iov_len : left);
        put((struct head){.type = 'W', .ino = ino, .a = (uint64_t)off, .data_len = len}, NULL, NULL,
            iov[i].iov_base);
        off += len;
        left -= (int)len;
    }
    pthread_mutex_unlock(&lock);
    errno = errnum;
    return n;
}

ssize_t write(int fd, const void *data, size_t len)
{
    return do_write(fd, &(struct iovec){(void *)(uintptr_t)data, len}, 1, 0, false);
}

ssize_t writev(int fd, const struct iovec *iov, int count)
{
    return do_write(fd, iov, count, 0, false);
}

#define PWRITE(name)                                                                               \
    ssize_t name(int fd, const void *data, size_t len, off64_t off)                                \
    {                                                                                              \
        return do_write(fd, &(struct iovec){(void *)(uintptr_t)data, len}, 1, off, true);          \
    }
#define PWRITEV(name)                                                                              \
    ssize_t name(int fd, const struct iovec *iov, int count, off64_t off)                          \
    {                                                                                              \
        return do_write(fd, iov, count, off, true);                                                \
    }
PWRITE(pwrite)
PWRITE(pwrite64)
PWRITEV(pwritev)
PWRITEV(pwritev64)

ssize_t copy_file_range(int from, off64_t *from_off, int to, off64_t *to_off, size_t len,
                        unsigned flags)
{
    char buf[65536];
    off64_t src = from_off ? *from_off : lseek64(from, 0, SEEK_CUR);
    off64_t dst = to_off ? *to_off : lseek64(to, 0, SEEK_CUR);
    struct stat st;
    const char *name;
    pthread_mutex_lock(&lock);
    uint64_t ino = inode_of(to, &st, &name);
    enum injected how = inject(WRITES, name);
    ssize_t n = how == ERROR ? -1
                             : syscall(SYS_copy_file_range, from, from_off, to, to_off,
                                       how == SHORT ? len / 2 + 1 : len, flags);
    int errnum = errno;
    for (ssize_t done = 0; ino && done < n;) {
        ssize_t want = n - done < (ssize_t)sizeof(buf) ? n - done : (ssize_t)sizeof(buf);
        if (syscall(SYS_pread64, from, buf, want, src + done) != want)
            abort();
        put(
            (struct head){
                .type = 'W', .ino = ino, .a = (uint64_t)(dst + done), .data_len = (uint32_t)want},
            NULL, NULL, buf);
        done += want;
    }
    pthread_mutex_unlock(&lock);
    errno = errnum;
    return n;
}

static int do_truncate(int fd, off64_t size)
{
    struct stat st;
    const char *name;
    pthread_mutex_lock(&lock);
    uint64_t ino = inode_of(fd, &st, &name);
    int rc = inject(OTHER, name) ? -1 : (int)syscall(SYS_ftruncate, fd, size);
    int errnum = errno;
    if (rc == 0 && ino)
        put((struct head){.type = 'T', .ino = ino, .a = (uint64_t)size}, NULL, NULL, NULL);
    pthread_mutex_unlock(&lock);
    errno = errnum;
    return rc;
}

int ftruncate(int fd, off_t size)
{
    return do_truncate(fd, size);
}

int ftruncate64(int fd, off64_t size)
{
    return do_truncate(fd, size);
}

static int do_truncate_path(const char *path, off64_t size)
{
    int fd = do_open(AT_FDCWD, path, O_WRONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    int rc = do_truncate(fd, size);
    close(fd);
    return rc;
}

int truncate(const char *path, off_t size)
{
    return do_truncate_path(path, size);
}

int truncate64(const char *path, off64_t size)
{
    return do_truncate_path(path, size);
}

static int do_fallocate(int fd, int mode, off64_t off, off64_t len)
{
    struct stat st;
    const char *name;
    pthread_mutex_lock(&lock);
    uint64_t ino = inode_of(fd, &st, &name);
    int rc = inject(NEEDS_ROOM, name) ? -1 : (int)syscall(SYS_fallocate, fd, mode, off, len);
    int errnum = errno;
    if (rc == 0 && ino && mode & FALLOC_FL_PUNCH_HOLE)
        put((struct head){.type = 'P', .ino = ino, .a = (uint64_t)off, .b = (uint64_t)len}, NULL,
            NULL, NULL);
    else if (rc == 0 && ino && !(mode & FALLOC_FL_KEEP_SIZE) && off + len > st.st_size)
        put((struct head){.type = 'T', .ino = ino, .a = (uint64_t)(off + len)}, NULL, NULL, NULL);
    pthread_mutex_unlock(&lock);
    errno = errnum;
    return rc;
}

int fallocate(int fd, int mode, off_t off, off_t len)
{
    return do_fallocate(fd, mode, off, len);
}

int fallocate64(int fd, int mode, off64_t off, off64_t len)
{
    return do_fallocate(fd, mode, off, len);
}

static int do_sync(int fd, long call)
{
    struct stat st;
    const char *name;
    pthread_mutex_lock(&lock);
    uint64_t ino = inode_of(fd, &st, &name);
    int rc = inject(FLUSHES, name) ? -1 : (int)syscall(call, fd);
    int errnum = errno;
    if (rc == 0 && ino && S_ISDIR(st.st_mode) && call != SYS_syncfs) {
        put((struct head){.type = 'd'}, name, NULL, NULL);
    } else if (rc == 0 && ino) {
        put((struct head){.type = call == SYS_syncfs ? 'Y' : 'S', .ino = ino}, NULL, NULL, NULL);
    }
    pthread_mutex_unlock(&lock);
    errno = errnum;
    return rc;
}

int fsync(int fd)
{
    return do_sync(fd, SYS_fsync);
}

int fdatasync(int fd)
{
    return do_sync(fd, SYS_fdatasync);
}

int syncfs(int fd)
{
    return do_sync(fd, SYS_syncfs);
}

static int do_rename(int from_dir, const char *from, int to_dir, const char *to, unsigned flags)
{
    char a[8192], b[8192];
    pthread_mutex_lock(&lock);
    const char *x = below(from_dir, from, a), *y = below(to_dir, to, b);
    int rc =
        inject(NEEDS_ROOM, y) ? -1 : (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, flags);
    int errnum = errno;
    if (rc == 0 && x && y)
        put((struct head){.type = 'R', .a = flags}, x, y, NULL);
    pthread_mutex_unlock(&lock);
    errno = errnum;
    return rc;
}

int rename(const char *from, const char *to)
{
    return do_rename(AT_FDCWD, from, AT_FDCWD, to, 0);
}

int renameat(int from_dir, const char *from, int to_dir, const char *to)
{
    return do_rename(from_dir, from, to_dir, to, 0);
}

int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags)
{
    return do_rename(from_dir, from, to_dir, to, flags);
}

static int do_name(uint32_t type, int dir, const char *path, int flags, mode_t mode)
{
    char buf[8192];
    pthread_mutex_lock(&lock);
    const char *name = below(dir, path, buf);
    int rc = inject(type == 'M' ? NEEDS_ROOM : OTHER, name) ? -1
             : type == 'M' ? (int)syscall(SYS_mkdirat, dir, path, mode)
                           : (int)syscall(SYS_unlinkat, dir, path, flags);
    int errnum = errno;
    if (rc == 0 && name)
        put((struct head){.type = flags & AT_REMOVEDIR ? 'D' : type}, name, NULL, NULL);
    pthread_mutex_unlock(&lock);
    errno = errnum;
    return rc;
}

int unlink(const char *path)
{
    return do_name('U', AT_FDCWD, path, 0, 0);
}

int unlinkat(int dir, const char *path, int flags)
{
    return do_name('U', dir, path, flags, 0);
}

int rmdir(const char *path)
{
    return do_name('U', AT_FDCWD, path, AT_REMOVEDIR, 0);
}

int mkdir(const char *path, mode_t mode)
{
    return do_name('M', AT_FDCWD, path, 0, mode);
}

int mkdirat(int dir, const char *path, mode_t mode)
{
    return do_name('M', dir, path, 0, mode);
}
