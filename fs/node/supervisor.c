/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/node/supervisor.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/file.h"
#include "common/log.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define RESTART_FIRST_MS 20
#define RESTART_MAX_MS 2000
#define STOP_TIMEOUT_MS 10000

extern char **environ;

struct supervisor {
    char *socket, *address, *log, *snapshots, *state;
    char **argv;
    pthread_t thread;
    atomic_int pid;
    atomic_bool stopping;
};

/* The master's program: named by the environment, beside this one, in the build tree, or on PATH.
 */
static char *find_program(void)
{
    const char *named = getenv("MOONCAKEFS_MASTER");
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    if (named && *named)
        return strdup(named);
    if (n > 0) {
        static const char *const places[] = {"mooncakefs-master", "../master/mooncakefs-master"};
        self[n] = 0;
        char *slash = strrchr(self, '/');
        for (size_t i = 0; slash && i < MCFS_ARRAY_SIZE(places); i++) {
            char *path;
            if (asprintf(&path, "%.*s/%s", (int)(slash - self), self, places[i]) < 0)
                return NULL;
            if (access(path, X_OK) == 0)
                return path;
            free(path);
        }
    }
    return strdup("mooncakefs-master");
}

static char *text(const char *fmt, const char *value)
{
    char *s;
    if (asprintf(&s, fmt, value) < 0)
        abort(); /* only at start */
    return s;
}

static char **build_argv(struct supervisor *s, const char *const *flags)
{
    size_t extra = 0, n = 0;
    while (flags && flags[extra])
        extra++;
    char **argv = calloc(extra + 16, sizeof(*argv));
    if (!argv)
        abort();
    argv[n++] = find_program();
    argv[n++] = text("--rpc_socket=%s", s->socket);
    argv[n++] = strdup("--rpc_port=0");
    argv[n++] = strdup("--metrics_port=0");
    argv[n++] = text("--snapshot_local_path=%s", s->snapshots);
    argv[n++] = text("--state_dir=%s", s->state);
    argv[n++] = text("--log_file=%s", s->log);
    argv[n++] = strdup("--enable_snapshot=true");
    argv[n++] = strdup("--enable_snapshot_restore=true");
    argv[n++] = strdup("--die_with_parent=true");
    for (size_t i = 0; i < extra; i++)
        argv[n++] = strdup(flags[i]);
    return argv;
}

/* The environment without systemd's socket: what is ready is for the node to say. */
static char **child_environment(void)
{
    size_t n = 0, kept = 0;
    while (environ[n])
        n++;
    char **env = calloc(n + 1, sizeof(*env));
    for (size_t i = 0; env && i < n; i++)
        if (strncmp(environ[i], "NOTIFY_SOCKET=", 14) != 0)
            env[kept++] = environ[i];
    return env;
}

static int spawn(struct supervisor *s)
{
    _cleanup_free_ char **env = child_environment();
    posix_spawnattr_t attr;
    posix_spawn_file_actions_t files;
    sigset_t none, all;
    pid_t pid;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_init(&attr);
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawnattr_setsigdefault(&attr, &all);
    posix_spawnattr_setpgroup(&attr,
                              0); /* Ctrl-C at the mount's terminal is the mount's to handle */
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF |
                                        POSIX_SPAWN_SETPGROUP);
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&files, 1, s->log, O_WRONLY | O_CREAT | O_APPEND, 0644);
    posix_spawn_file_actions_addopen(&files, 2, s->log, O_WRONLY | O_CREAT | O_APPEND, 0644);
    int rc = posix_spawnp(&pid, s->argv[0], &files, &attr, s->argv, env);
    posix_spawnattr_destroy(&attr);
    posix_spawn_file_actions_destroy(&files);
    if (rc) {
        mcfs_error("cannot start %s: %s", s->argv[0], strerror(rc));
        return -1;
    }
    atomic_store(&s->pid, pid);
    return 0;
}

/* Lives as long as the supervisor: the master's parent-death signal follows this thread. */
static void *watch(void *arg)
{
    struct supervisor *s = arg;
    int64_t pause_ms = RESTART_FIRST_MS;
    while (!atomic_load(&s->stopping)) {
        int64_t started = mcfs_mono_ms();
        int status = 0;
        if (spawn(s) == 0) {
            waitpid(atomic_load(&s->pid), &status, 0);
            atomic_store(&s->pid, 0);
        }
        if (atomic_load(&s->stopping))
            break;
        if (WIFSIGNALED(status))
            mcfs_warning("the master died of signal %d and is started again", WTERMSIG(status));
        else
            mcfs_warning("the master ended with status %d and is started again; see %s",
                         WEXITSTATUS(status), s->log);
        pause_ms = mcfs_mono_ms() - started > 5000 ? RESTART_FIRST_MS
                                                   : MCFS_MIN(pause_ms * 2, RESTART_MAX_MS);
        for (int64_t slept = 0; slept < pause_ms && !atomic_load(&s->stopping); slept += 10)
            poll(NULL, 0, 10);
    }
    return NULL;
}

struct supervisor *supervisor_start(const struct state_dir *state, const char *const *flags,
                                    const char **address, struct mcfs_error *err)
{
    struct supervisor *s = calloc(1, sizeof(*s));
    if (!s) {
        mcfs_fail_errno(err, ENOMEM, "supervisor");
        return NULL;
    }
    s->state = strdup(state->path);
    s->socket = state_dir_path(state, "master.sock");
    s->log = state_dir_path(state, "master.log");
    s->snapshots = state_dir_path(state, "snapshots");
    s->address = text("unix:%s", s->socket);
    s->argv = build_argv(s, flags);
    *address = s->address;
    int rc =
        mcfs_make_dirs(s->snapshots, 0755, err) ? -1 : pthread_create(&s->thread, NULL, watch, s);
    if (rc > 0)
        mcfs_fail_errno(err, rc, "supervisor thread");
    if (rc == 0)
        return s;
    s->thread = 0;
    supervisor_stop(s);
    return NULL;
}

void supervisor_stop(struct supervisor *s)
{
    if (!s)
        return;
    atomic_store(&s->stopping, true);
    if (s->thread) {
        int told = 0;
        for (int64_t i = 0; s->thread && i < STOP_TIMEOUT_MS / 10; i++) {
            int pid = atomic_load(&s->pid); /* it may be about to be started */
            if (pid && pid != told)
                kill(told = pid, SIGTERM);
            if (pthread_tryjoin_np(s->thread, NULL) == 0)
                s->thread = 0;
            else
                poll(NULL, 0, 10);
        }
        if (s->thread) {
            int pid = atomic_load(&s->pid);
            if (pid)
                kill(pid, SIGKILL);
            pthread_join(s->thread, NULL);
        }
    }
    for (char **a = s->argv; a && *a; a++)
        free(*a);
    free(s->argv);
    free(s->socket);
    free(s->address);
    free(s->log);
    free(s->snapshots);
    free(s->state);
    free(s);
}

int supervisor_pid(struct supervisor *s)
{
    return atomic_load(&s->pid);
}

void supervisor_last_words(struct supervisor *s, char *words, size_t cap)
{
    char tail[1024];
    words[0] = 0;
    _cleanup_fd_ int fd = open(s->log, O_RDONLY | O_CLOEXEC);
    off_t size = fd < 0 ? -1 : lseek(fd, 0, SEEK_END);
    if (size <= 0)
        return;
    off_t from = size > (off_t)sizeof(tail) - 1 ? size - (off_t)sizeof(tail) + 1 : 0;
    ssize_t n = mcfs_pread_full(fd, tail, sizeof(tail) - 1, (uint64_t)from);
    while (n > 0 && tail[n - 1] == '\n')
        n--;
    if (n <= 0)
        return;
    tail[n] = 0;
    char *line = strrchr(tail, '\n');
    snprintf(words, cap, "%s", line ? line + 1 : tail);
}
