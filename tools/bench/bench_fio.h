/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_BENCH_FIO_H
#define MCFS_BENCH_FIO_H

/* fio as what a store is measured against: the same bytes, in as many files, with the same engine
 * and flags. */

#include <stdbool.h>
#include <stdint.h>

struct bench_fio {
    const char *dir;    /* its files go here, alone */
    const char *engine; /* "uring": 32 requests of 1 MiB at a time; "plain": one at a time */
    uint32_t files;
    uint64_t bytes;   /* of all of them */
    uint64_t request; /* bytes of one with "plain" */
    bool direct;
};

/* Writes new files and syncs them, and reads what was written; seconds as fio says.  Ends the
 * program, with a line, when fio fails. */
double bench_fio_write(const struct bench_fio *f);
double bench_fio_read(const struct bench_fio *f);

#endif
