/* SPDX-License-Identifier: Apache-2.0 */
/* File operations in a tight loop, for bench_mount.py: prints the seconds they took, and nothing
 * else. */
#include "common/clock.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define BUFFER (128u << 10)

static char buffer[1 << 20];

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static void read_file(const char *path, size_t chunk)
{
    char *buf = malloc(chunk);
    int fd = open(path, O_RDONLY);
    if (fd < 0 || !buf)
        die(path);
    while (read(fd, buf, chunk) > 0)
        ;
    close(fd);
    free(buf);
}

static void write_file(const char *path, size_t size, int sync)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (fd < 0)
        die(path);
    for (size_t done = 0; done < size;) {
        size_t n = size - done < sizeof(buffer) ? size - done : sizeof(buffer);
        if (write(fd, buffer, n) != (ssize_t)n)
            die(path);
        done += n;
    }
    if (close(fd))
        die(path);
    if (sync) {
        fd = open(path, O_RDONLY);
        if (fd < 0 || fsync(fd))
            die(path);
        close(fd);
    }
}

static void *read_thread(void *arg)
{
    read_file(arg, BUFFER);
    return NULL;
}

/* What a plain TCP stream over loopback takes for as many bytes, in pieces of 1 MiB. */
static void stream(uint64_t bytes)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof(a);
    int listener = socket(AF_INET, SOCK_STREAM, 0), out = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&a, sizeof(a)) || listen(listener, 1) ||
        getsockname(listener, (struct sockaddr *)&a, &len))
        die("listen");
    pid_t pid = fork();
    if (pid == 0) {
        if (connect(out, (struct sockaddr *)&a, sizeof(a)))
            _exit(1);
        for (uint64_t done = 0; done < bytes;) {
            size_t n = bytes - done < sizeof(buffer) ? (size_t)(bytes - done) : sizeof(buffer);
            ssize_t sent = write(out, buffer, n);
            if (sent <= 0)
                _exit(1);
            done += (uint64_t)sent;
        }
        _exit(0);
    }
    int in = accept(listener, NULL, NULL);
    uint64_t got = 0;
    for (ssize_t n; got < bytes && (n = read(in, buffer, sizeof(buffer))) > 0;)
        got += (uint64_t)n;
    waitpid(pid, NULL, 0);
    if (got != bytes)
        die("stream");
    close(in);
    close(out);
    close(listener);
}

/* fileops OPERATION DIR COUNT SIZE: works on DIR/f<0..COUNT-1>. */
int main(int argc, char **argv)
{
    if (argc != 5)
        return 2;
    const char *op = argv[1], *dir = argv[2];
    int count = atoi(argv[3]);
    size_t size = (size_t)strtoull(argv[4], NULL, 10);
    char path[4096], tmp[4096];
    struct stat st;
    for (size_t i = 0; i < sizeof(buffer); i++)
        buffer[i] = (char)(i * 7 + i / 251);
    int64_t began = mcfs_mono_ns();
    if (strcmp(op, "list") == 0 || strcmp(op, "list-stat") == 0) {
        DIR *d = opendir(dir);
        struct dirent *e;
        int n = 0;
        while (d && (e = readdir(d))) {
            n += e->d_name[0] != '.';
            if (op[4] && fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW))
                die(e->d_name);
        }
        if (n != count)
            return 1;
    } else if (strcmp(op, "tcp") == 0) {
        stream((uint64_t)count * size);
    } else if (strcmp(op, "threads") == 0) {
        pthread_t threads[64];
        static char names[64][4096];
        for (int i = 0; i < count; i++) {
            snprintf(names[i], sizeof(names[i]), "%s/f%d", dir, i);
            pthread_create(&threads[i], NULL, read_thread, names[i]);
        }
        for (int i = 0; i < count; i++)
            pthread_join(threads[i], NULL);
    } else {
        for (int i = 0; i < count; i++) {
            snprintf(path, sizeof(path), "%s/f%d", dir, i);
            if (strcmp(op, "read") == 0) {
                read_file(path, BUFFER);
            } else if (strcmp(op, "stat") == 0) {
                if (stat(path, &st))
                    die(path);
            } else if (strcmp(op, "write") == 0) {
                write_file(path, size, 0);
            } else if (strcmp(op, "write-sync") == 0) {
                write_file(path, size, 1);
            } else if (strcmp(op, "publish") == 0) {
                snprintf(tmp, sizeof(tmp), "%s.tmp", path);
                write_file(tmp, size, 0);
                if (rename(tmp, path))
                    die(path);
            } else {
                return 2;
            }
        }
        if (strcmp(op, "write") == 0) {
            int fd = open(dir, O_RDONLY);
            if (fd >= 0 && size <= 65536)
                syncfs(fd);
            close(fd);
        }
    }
    printf("%.6f\n", (double)(mcfs_mono_ns() - began) / 1e9);
    return 0;
}
