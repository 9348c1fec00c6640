/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stops a forked child with SIGKILL after one of its file-system calls.  MCFS_KILL_PLAN names a
 * file that a child reads at its first such call: "<n>" stops it after the n-th, "<n> half" in the
 * middle of it when it is a write, 0 or no file never.  How many it made stands in the
 * file with ".count" behind that name.  The process that loaded this, and what it execs, is left
 * alone.
 */
#undef _FILE_OFFSET_BITS /* both names of open are made here */
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static int first_pid;
static const char *plan_path;
static int stop_after;
static int stop_half;
static atomic_int made;
static atomic_int loaded; /* pid for which the plan was read */

__attribute__((constructor)) static void begin(void)
{
    first_pid = (int)syscall(SYS_getpid);
    plan_path = getenv("MCFS_KILL_PLAN");
}

/* The child's first call comes from its only thread. */
static void load(int pid)
{
    char text[64] = "";
    int fd = (int)syscall(SYS_openat, AT_FDCWD, plan_path, O_RDONLY | O_CLOEXEC);
    atomic_store(&loaded, pid);
    atomic_store(&made, 0);
    stop_after = stop_half = 0;
    if (fd < 0)
        return;
    if (syscall(SYS_read, fd, text, sizeof(text) - 1) > 0) {
        stop_after = atoi(text);
        stop_half = strstr(text, "half") != NULL;
    }
    syscall(SYS_close, fd);
}

/* Of one width and never truncated: a test reads the file while the child goes on. */
static void note(int n)
{
    char path[4096], text[16];
    snprintf(path, sizeof(path), "%s.count", plan_path);
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT, 0644);
    if (fd < 0)
        return;
    syscall(SYS_write, fd, text, (size_t)snprintf(text, sizeof(text), "%10d", n));
    syscall(SYS_close, fd);
}

/* The number of this call; 0 where nobody counts. */
static int count(void)
{
    int pid = (int)syscall(SYS_getpid);
    if (!plan_path || pid == first_pid)
        return 0;
    if (atomic_load(&loaded) != pid)
        load(pid);
    int n = atomic_fetch_add(&made, 1) + 1;
    note(n);
    return n;
}

static void die(void)
{
    syscall(SYS_kill, syscall(SYS_getpid), SIGKILL);
    for (;;)
        pause();
}

static long after(int n, long rc)
{
    if (n && n == stop_after)
        die();
    return rc;
}

static int open_counted(const char *path, int flags, va_list list)
{
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(list, mode_t) : 0;
    int n = count();
    return (int)after(n, syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}

int open(const char *path, int flags, ...)
{
    va_list list;
    va_start(list, flags);
    int fd = open_counted(path, flags, list);
    va_end(list);
    return fd;
}

int open64(const char *path, int flags, ...)
{
    va_list list;
    va_start(list, flags);
    int fd = open_counted(path, flags, list);
    va_end(list);
    return fd;
}

ssize_t write(int fd, const void *data, size_t len)
{
    int n = count();
    if (n && n == stop_after && stop_half) {
        syscall(SYS_write, fd, data, len / 2);
        die();
    }
    return after(n, syscall(SYS_write, fd, data, len));
}

ssize_t pwrite64(int fd, const void *data, size_t len, off64_t off)
{
    int n = count();
    if (n && n == stop_after && stop_half) {
        syscall(SYS_pwrite64, fd, data, len / 2, off);
        die();
    }
    return after(n, syscall(SYS_pwrite64, fd, data, len, off));
}

ssize_t pwritev64(int fd, const struct iovec *iov, int count_of, off64_t off)
{
    int n = count();
    return after(n, syscall(SYS_pwritev, fd, iov, count_of, off, 0));
}

int ftruncate64(int fd, off64_t len)
{
    int n = count();
    return (int)after(n, syscall(SYS_ftruncate, fd, len));
}

int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags)
{
    int n = count();
    return (int)after(n, syscall(SYS_renameat2, from_dir, from, to_dir, to, flags));
}

int fsync(int fd)
{
    int n = count();
    return (int)after(n, syscall(SYS_fsync, fd));
}

int rename(const char *from, const char *to)
{
    int n = count();
    return (int)after(n, syscall(SYS_rename, from, to));
}

int unlink(const char *path)
{
    int n = count();
    return (int)after(n, syscall(SYS_unlink, path));
}

int rmdir(const char *path)
{
    int n = count();
    return (int)after(n, syscall(SYS_rmdir, path));
}

int mkdir(const char *path, mode_t mode)
{
    int n = count();
    return (int)after(n, syscall(SYS_mkdir, path, mode));
}
