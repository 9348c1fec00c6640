/* SPDX-License-Identifier: Apache-2.0 */
#include "master/quota.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void look(struct mcfs_slice tenant, uint64_t bytes, void *arg)
{
    (void)arg;
    if (!bytes || !tenant.len || tenant.len > MCFS_TENANT_MAX || tenant.data[0] == '_')
        __builtin_trap();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct quotas *q = quotas_parse((const char *)data, size, "policy", &err);
    if (!q && (err.code == MCFS_OK || !err.msg[0]))
        __builtin_trap();
    if (q)
        quotas_each(q, look, NULL);
    quotas_free(q);
    return 0;
}
