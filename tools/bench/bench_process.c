/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/bench/bench_process.h"

#include "common/cleanup.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>

char *bench_program(const char *name, const char *build_folder)
{
    char self[PATH_MAX], *path;
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    char *slash = NULL;
    if (n > 0) {
        self[n] = 0;
        slash = strrchr(self, '/');
    }
    for (int i = 0; slash && i < 2; i++) {
        if (asprintf(&path, "%.*s/%s%s%s%s", (int)(slash - self), self, i ? "../" : "",
                     i ? build_folder : "", i ? "/" : "", name) < 0)
            return NULL;
        if (access(path, X_OK) == 0)
            return path;
        free(path);
    }
    return strdup(name);
}

pid_t bench_start(const char *const *argv, const char *log_path, struct mcfs_error *err)
{
    pid_t pid = fork();
    if (pid < 0)
        return mcfs_fail_errno(err, errno, "fork");
    if (pid)
        return pid;
    int fd = open(log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd >= 0) {
        dup2(fd, 1);
        dup2(fd, 2);
    }
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    execvp(argv[0], (char *const *)argv);
    _exit(127);
}

void bench_stop(pid_t pid)
{
    kill(pid, SIGTERM);
    waitpid(pid, NULL, 0);
}

/* A field of smaps_rollup, bytes; 0 for a process that has gone. */
static uint64_t field_bytes(pid_t pid, const char *field)
{
    char path[64], line[128];
    uint64_t kib = 0;
    size_t len = strlen(field);
    snprintf(path, sizeof(path), "/proc/%d/smaps_rollup", (int)pid);
    _cleanup_file_ FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof(line), f))
        if (strncmp(line, field, len) == 0 && line[len] == ':' &&
            sscanf(line + len + 1, "%" SCNu64, &kib) == 1)
            break;
    return kib * 1024;
}

/* Children are listed with the thread that forked them. */
static uint64_t children_bytes(pid_t pid, const char *field)
{
    char path[320];
    uint64_t sum = 0;
    snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
    _cleanup_dir_ DIR *tasks = opendir(path);
    for (struct dirent *e; tasks && (e = readdir(tasks));) {
        int child;
        snprintf(path, sizeof(path), "/proc/%d/task/%s/children", (int)pid, e->d_name);
        _cleanup_file_ FILE *f = fopen(path, "re");
        while (f && fscanf(f, "%d", &child) == 1)
            sum += field_bytes(child, field);
    }
    return sum;
}

/* A child that begins or ends in between is left out: what it shares would be counted whole with
 * the parent, and by halves with it. */
uint64_t bench_memory(pid_t pid)
{
    uint64_t before = children_bytes(pid, "Pss"), own = field_bytes(pid, "Pss");
    return own + MCFS_MIN(before, children_bytes(pid, "Pss"));
}

uint64_t bench_children_private(pid_t pid)
{
    return children_bytes(pid, "Private_Dirty");
}

uint16_t bench_free_port(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof(a);
    _cleanup_fd_ int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof(a)) ||
        getsockname(fd, (struct sockaddr *)&a, &len))
        return 0;
    return ntohs(a.sin_port);
}
