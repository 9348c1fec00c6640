/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_TOOLS_BENCH_PROCESS_H
#define MCFS_TOOLS_BENCH_PROCESS_H

/* Programs that a benchmark starts, and what memory they take. */

#include <mooncakefs/error.h>
#include <stdint.h>
#include <sys/types.h>

/* Path of a program of this project: beside this one, in the build tree, or on PATH.  malloc'ed. */
char *bench_program(const char *name, const char *build_folder);

/* Starts argv (NULL-terminated) with its standard output and error at log_path; it dies with this
 * process.  Returns the pid or -1. */
pid_t bench_start(const char *const *argv, const char *log_path, struct mcfs_error *err);

/* Ends it with SIGTERM and waits. */
void bench_stop(pid_t pid);

/* Proportional set size of a process and its children, bytes: shared pages count once. */
uint64_t bench_memory(pid_t pid);

/* What its children have written to and share with nobody, bytes. */
uint64_t bench_children_private(pid_t pid);

/* A TCP port of 127.0.0.1 that is free now. */
uint16_t bench_free_port(void);

#endif
