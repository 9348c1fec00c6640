/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_BACKENDS_CHECK_H
#define MCFS_BACKENDS_CHECK_H

/*
 * Checking a store's directory without opening it for writing, and dropping what is proven bad.
 * Not thread safe: one check of a directory at a time.
 */

#include "backends/finding.h"
#include <mooncakefs/backend.h>

struct store_check {
    const struct mcfs_backend_ops *layout;
    const char *dir, *fsdir; /* as in struct mcfs_backend_config */
    struct finding_sink sink;
    bool read_all; /* values without a checksum, too: can they be read at all? */

    /* What was found: */
    uint64_t objects, bytes;   /* that can be served */
    uint64_t read_bytes;       /* of values */
    uint64_t without_checksum; /* objects of which nothing tells whether their bytes are right */
};

/* Holds index against data, every value against its checksum, and names files that belong to
 * nothing.  0 when the directory could be read, whatever was found; -1 otherwise. */
int store_check(struct store_check *c, struct mcfs_error *err);

/* Drops what the findings (of a check that nobody has written since) say can be dropped, for good.
 * The caller owns the directory (mcfs_own_dir), except where repairing opens the store, which
 * owns it.  done[i] tells what was dropped or set right. */
int store_repair(const struct store_check *c, const struct finding *findings, size_t n, bool *done,
                 struct mcfs_error *err);

/* Whether it does that. */
bool store_repair_opens(const struct store_check *c);

/* ---- by layout ---- */

int bucket_check(struct store_check *c, struct mcfs_error *err);
int bucket_repair(const struct store_check *c, const struct finding *findings, size_t n, bool *done,
                  struct mcfs_error *err);

/* Whether there is a file-per-key store that we wrote. */
bool files_are_ours(const char *dir);
int files_check(struct store_check *c, struct mcfs_error *err);
int files_repair(const struct store_check *c, const struct finding *findings, size_t n, bool *done,
                 struct mcfs_error *err);

/* Reads every value that the store can serve and has a checksum (read_all: every value); b is open
 * for reading.  skip_checked: those with a checksum were read already. */
int check_values(struct store_check *c, struct mcfs_backend *b, bool skip_checked,
                 struct mcfs_error *err);

#endif
