/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_FS_DIR_LOG_H
#define MCFS_FS_DIR_LOG_H

/*
 * The file <state>/directories: what local_dirs knows, as a log (common/record_log.h).  A record is
 *
 *     [tenant, prefix, kept?, has attributes?, mode, uid, gid, mtime_ns]
 *
 * and replaces what an earlier one said of the same directory.
 */

#include "common/record_log.h"

#include <mooncakefs/object.h>

struct dir_record {
    struct mcfs_slice tenant, prefix;
    bool kept, has_attr; /* neither: the directory is forgotten */
    struct mcfs_attr attr;
};

/* Appends a record's bytes to a buffer. */
void dir_record_put(struct mcfs_buf *b, const struct dir_record *r);

/* Reads a record's content; slices point into it.  False: it is none. */
bool dir_record_read(struct mp_reader *content, struct dir_record *r);

#endif
