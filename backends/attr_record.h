/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_BACKENDS_ATTR_RECORD_H
#define MCFS_BACKENDS_ATTR_RECORD_H

/* Attributes in a record of a store's log: u32 mode, uid, gid; i64 mtime_ns; little-endian. */

#include "common/buf.h"
#include "common/cursor.h"
#include <mooncakefs/object.h>

static inline void attr_record_put(struct mcfs_buf *b, const struct mcfs_attr *attr)
{
    mcfs_buf_u32(b, attr->mode);
    mcfs_buf_u32(b, attr->uid);
    mcfs_buf_u32(b, attr->gid);
    mcfs_buf_u64(b, (uint64_t)attr->mtime_ns);
}

/* Of the mode, the permissions. */
static inline void attr_record_take(struct mcfs_cursor *c, struct mcfs_attr *attr)
{
    attr->mode = mcfs_cursor_u32(c) & 07777;
    attr->uid = mcfs_cursor_u32(c);
    attr->gid = mcfs_cursor_u32(c);
    attr->mtime_ns = (int64_t)mcfs_cursor_u64(c);
}

#endif
