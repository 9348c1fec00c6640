/* SPDX-License-Identifier: Apache-2.0 */
/* mooncakefs: mounts a node.  The command returns when the mount serves requests, or with one line
 * that says why it does not. */
#include "common/cleanup.h"
#include "common/file.h"
#include "common/log.h"
#include "fs/node/state_dir.h"
#include "fs/session.h"

#define FUSE_USE_VERSION 314
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <systemd/sd-daemon.h>

struct start {
    int pipe; /* to the command that waits; -1 in the foreground */
    bool ready;
};

static void on_ready(void *arg)
{
    struct start *s = arg;
    s->ready = true;
    if (s->pipe >= 0) {
        if (write(s->pipe, "", 1) != 1)
            mcfs_warning("the mount command is gone");
        close(s->pipe);
        s->pipe = -1;
    }
    sd_notify(0, "READY=1\nSTATUS=mounted");
}

/* Waits for the daemon's first word: a NUL (it serves) or a line that says why it failed. */
static int wait_for_daemon(int fd)
{
    char line[1024];
    size_t n = 0;
    ssize_t got;
    while (n < sizeof(line) - 1 && (got = read(fd, line + n, sizeof(line) - 1 - n)) > 0) {
        n += (size_t)got;
        if (line[0] == 0)
            return 0;
    }
    line[n] = 0;
    fprintf(stderr, "mooncakefs: %s\n", n ? line : "the daemon died before it was ready");
    return 1;
}

static volatile pid_t waited_for;

static void give_up(int sig)
{
    kill(waited_for, SIGTERM);
    raise(sig); /* blocked until this returns; then by its default */
}

/* A command that is given up takes its daemon along: that may be waiting for a master that
 * restores, and would mount when nobody expects it any more. */
static void give_up_with_me(pid_t daemon)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action = {.sa_handler = give_up, .sa_flags = (int)SA_RESETHAND};
    waited_for = daemon;
    for (size_t i = 0; i < MCFS_ARRAY_SIZE(signals); i++)
        sigaction(signals[i], &action, NULL);
}

/* Detaches from the terminal; the logs go to a file from here on. */
static int daemonize(struct start *s, int *exit_status)
{
    int fds[2];
    if (pipe2(fds, O_CLOEXEC))
        return -1;
    pid_t pid = fork();
    if (pid < 0)
        return -1;
    if (pid > 0) {
        close(fds[1]);
        give_up_with_me(pid);
        *exit_status = wait_for_daemon(fds[0]);
        return 1;
    }
    close(fds[0]);
    s->pipe = fds[1];
    setsid();
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int fd = 0; null >= 0 && fd <= 2; fd++)
        dup2(null, fd);
    if (null > 2)
        close(null);
    return 0;
}

static void open_log(const struct mount_options *o)
{
    struct source source;
    char path[PATH_MAX];
    if (source_parse(o, &source, NULL))
        return;
    snprintf(path, sizeof(path), "%s/mooncakefs.log", source.state_dir);
    if (mcfs_log_to_file(o->log_file ? o->log_file : path)) {
        /* The state directory may not be there yet. */
        mcfs_make_dirs(source.state_dir, 0755, NULL);
        if (mcfs_log_to_file(o->log_file ? o->log_file : path))
            mcfs_log_to_syslog();
    }
    source_free(&source);
}

static int run(struct mount_options *o, struct mcfs_error *err)
{
    struct start s = {.pipe = -1};
    int status = 0;
    /* The working directory may be gone, or changed, when these are used. */
    char *absolute = realpath(o->mountpoint, NULL);
    if (absolute) {
        free(o->mountpoint);
        o->mountpoint = absolute;
    }
    if (!o->foreground) {
        int rc = daemonize(&s, &status);
        if (rc < 0)
            return mcfs_fail_errno(err, errno, "fork");
        if (rc > 0)
            return status ? -2 : 0; /* the daemon has said it */
        open_log(o);
    } else if (o->log_file && mcfs_log_to_file(o->log_file)) {
        return mcfs_fail_errno(err, errno, "%s", o->log_file);
    }
    int rc = session_run(o, on_ready, &s, err);
    sd_notify(0, "STOPPING=1");
    if (rc && s.pipe >= 0) {
        if (write(s.pipe, err->msg, strlen(err->msg)) < 0)
            mcfs_error("%s", err->msg);
        close(s.pipe);
    } else if (rc && !o->foreground) {
        mcfs_error("%s", err->msg);
    }
    return o->foreground ? rc : rc ? -2 : 0;
}

int main(int argc, char **argv)
{
    struct mount_options o;
    struct mcfs_error err = MCFS_ERROR_INIT;
    mcfs_log_init("mooncakefs", MCFS_LOG_INFO);
    signal(SIGPIPE, SIG_IGN);
    if (mount_options_parse(&o, argc, argv, &err)) {
        fprintf(stderr, "mooncakefs: %s\n", err.msg);
        mount_options_free(&o);
        return 1;
    }
    if (o.help || o.version) {
        if (o.help)
            mount_options_help();
        else
            printf("mooncakefs %s, FUSE library %s\n", MCFS_VERSION, fuse_pkgversion());
        mount_options_free(&o);
        return 0;
    }
    if (o.verbose)
        mcfs_log_init("mooncakefs", MCFS_LOG_DEBUG);
    int rc = session_clean_stale(o.mountpoint, &err);
    if (rc > 0)
        fprintf(stderr, "mooncakefs: %s: cleaned the stale mount that a killed daemon left\n",
                o.mountpoint);
    if (rc >= 0)
        rc = o.recover ? 0 : run(&o, &err);
    if (rc == -1)
        fprintf(stderr, "mooncakefs: %s\n", err.msg);
    mount_options_free(&o);
    return rc ? 1 : 0;
}
