/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_COMMON_LOG_H
#define MCFS_COMMON_LOG_H

/*
 * The one logger.  One line per call, "<time> <level> <program>: <text>", to standard error, or to
 * syslog once the process is a daemon.  Thread safe; not for hot paths.
 */

#include <stdbool.h>

enum mcfs_log_level { MCFS_LOG_DEBUG, MCFS_LOG_INFO, MCFS_LOG_WARNING, MCFS_LOG_ERROR };

/* Names the program in every line and sets the lowest level that is written. */
void mcfs_log_init(const char *program, enum mcfs_log_level level);

/* Sends everything to a file (opened for append) from now on; returns 0 or -1 with errno set. */
int mcfs_log_to_file(const char *path);

/* Sends everything to syslog from now on (the process has no terminal any more). */
void mcfs_log_to_syslog(void);

bool mcfs_log_enabled(enum mcfs_log_level level);

void mcfs_log(enum mcfs_log_level level, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

#define mcfs_debug(...)                                                                            \
    do {                                                                                           \
        if (mcfs_log_enabled(MCFS_LOG_DEBUG))                                                      \
            mcfs_log(MCFS_LOG_DEBUG, __VA_ARGS__);                                                 \
    } while (0)
#define mcfs_info(...) mcfs_log(MCFS_LOG_INFO, __VA_ARGS__)
#define mcfs_warning(...) mcfs_log(MCFS_LOG_WARNING, __VA_ARGS__)
#define mcfs_error(...) mcfs_log(MCFS_LOG_ERROR, __VA_ARGS__)

#endif
