/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/dir_log.h"

void dir_record_put(struct mcfs_buf *b, const struct dir_record *r)
{
    size_t at = mcfs_record_begin(b);
    mp_put_array(b, 8);
    mp_put_str(b, r->tenant);
    mp_put_str(b, r->prefix);
    mp_put_bool(b, r->kept);
    mp_put_bool(b, r->has_attr);
    mp_put_uint(b, r->attr.mode);
    mp_put_uint(b, r->attr.uid);
    mp_put_uint(b, r->attr.gid);
    mp_put_int(b, r->attr.mtime_ns);
    mcfs_record_end(b, at);
}

bool dir_record_read(struct mp_reader *p, struct dir_record *r)
{
    return mp_read_array_of(p, 8) && mp_read_raw(p, &r->tenant) && mp_read_raw(p, &r->prefix) &&
           mp_read_bool(p, &r->kept) && mp_read_bool(p, &r->has_attr) &&
           mp_read_u32_max(p, 07777, &r->attr.mode) &&
           mp_read_u32_max(p, UINT32_MAX, &r->attr.uid) &&
           mp_read_u32_max(p, UINT32_MAX, &r->attr.gid) && mp_read_int(p, &r->attr.mtime_ns) &&
           mp_done(p) && r->tenant.len > 0 && r->tenant.len <= MCFS_TENANT_MAX &&
           r->prefix.len <= MCFS_KEY_MAX + 1 &&
           (r->prefix.len == 0 || r->prefix.data[r->prefix.len - 1] == '/');
}
