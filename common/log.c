/* SPDX-License-Identifier: Apache-2.0 */
#include "common/log.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

static const char *program_name = "mooncakefs";
static enum mcfs_log_level lowest = MCFS_LOG_INFO;
static bool to_syslog;
static int log_fd = STDERR_FILENO;

void mcfs_log_init(const char *program, enum mcfs_log_level level)
{
    program_name = program;
    lowest = level;
}

int mcfs_log_to_file(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0)
        return -1;
    log_fd = fd;
    to_syslog = false;
    return 0;
}

void mcfs_log_to_syslog(void)
{
    openlog(program_name, LOG_PID, LOG_DAEMON);
    to_syslog = true;
}

bool mcfs_log_enabled(enum mcfs_log_level level)
{
    return level >= lowest;
}

void mcfs_log(enum mcfs_log_level level, const char *fmt, ...)
{
    static const char *const names[] = {"debug", "info", "warning", "error"};
    static const int priorities[] = {LOG_DEBUG, LOG_INFO, LOG_WARNING, LOG_ERR};

    if (level < lowest)
        return;
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    if (to_syslog) {
        syslog(priorities[level], "%s", text);
        return;
    }

    struct timespec now;
    struct tm tm;
    char line[1200], when[32];
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &tm);
    strftime(when, sizeof(when), "%Y-%m-%d %H:%M:%S", &tm);
    int n = snprintf(line, sizeof(line), "%s.%03ld %s %s[%d]: %s\n", when, now.tv_nsec / 1000000,
                     names[level], program_name, (int)getpid(), text);
    if (n < 0)
        return;
    size_t len = (size_t)n < sizeof(line) ? (size_t)n : sizeof(line) - 1;
    line[len - 1] = '\n';
    /* One write keeps lines of several threads and processes whole; where it fails there is nobody
     * to tell. */
    ssize_t written = write(log_fd, line, len);
    (void)written;
}
