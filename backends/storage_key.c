/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/storage_key.h"

#include "common/cleanup.h"

int storage_key(struct mcfs_slice tenant, struct mcfs_slice key, struct mcfs_buf *buf,
                struct mcfs_error *err)
{
    if (tenant.len > MCFS_TENANT_MAX || tenant.len == 0 || memchr(tenant.data, 0, tenant.len))
        return mcfs_fail(err, MCFS_INVALID_KEY, "a tenant is 1 to %d bytes without 0x00",
                         MCFS_TENANT_MAX);
    if (key.len > MCFS_KEY_MAX)
        return mcfs_fail(err, MCFS_INVALID_KEY, "a key is at most %d bytes, not %zu", MCFS_KEY_MAX,
                         key.len);
    mcfs_buf_append(buf, tenant.data, tenant.len);
    mcfs_buf_append(buf, "", 1);
    mcfs_buf_append(buf, key.data, key.len);
    return buf->failed ? mcfs_fail_errno(err, ENOMEM, "storage key") : 0;
}

bool storage_key_is_valid(struct mcfs_slice key)
{
    const char *nul = key.len ? memchr(key.data, 0, key.len) : NULL;
    size_t tenant = nul ? (size_t)(nul - key.data) : 0;
    return tenant > 0 && tenant <= MCFS_TENANT_MAX && key.len - tenant - 1 <= MCFS_KEY_MAX;
}

bool storage_key_complete(struct mcfs_slice on_disk, struct mcfs_buf *buf)
{
    bool bare = !on_disk.len || !memchr(on_disk.data, 0, on_disk.len);
    if (bare)
        mcfs_buf_append(buf, MCFS_DEFAULT_TENANT, sizeof(MCFS_DEFAULT_TENANT));
    mcfs_buf_append(buf, on_disk.data, on_disk.len);
    return bare;
}

void storage_key_split(struct mcfs_slice key, struct mcfs_slice *tenant, struct mcfs_slice *name)
{
    const char *nul = memchr(key.data, 0, key.len);
    size_t len = nul ? (size_t)(nul - key.data) : 0;
    *tenant = mcfs_slice(key.data, len);
    *name = mcfs_slice(key.data + len + 1, key.len - len - 1);
}

int storage_gone(struct mcfs_slice key, struct mcfs_error *err)
{
    return mcfs_fail(err, MCFS_REPLICA_IS_GONE, "%.*s: this version is not stored here",
                     (int)MCFS_MIN(key.len, 160), key.data);
}
