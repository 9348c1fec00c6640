/* SPDX-License-Identifier: Apache-2.0 */
/* The input as the index file of a snapshot, looked through as history/ does; once as it is, and
 * once with the checksum that it should have, so that what is behind it is reached. */
#include "common/crc32c.h"
#include "fs/history_index.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Where these stand in the header, and how long it and a tenant are. */
enum { TENANTS_AT = 24, SUM_AT = 28, NEXT_ID_AT = 32, CREATED_AT = 40, HEADER = 48 };
#define TENANT (2 * sizeof(uint64_t) + MCFS_TENANT_MAX + 1)

static uint64_t use(const struct history_index *x)
{
    uint64_t sum = strlen(history_index_id(x));
    const char *tenant;
    for (uint32_t t = 0; (tenant = history_index_tenant(x, t)); t++) {
        struct mcfs_slice keys[] = {mcfs_slice("", 0), mcfs_slice_str(tenant),
                                    mcfs_slice("dir/", 4), mcfs_slice("\xff\xff", 2)};
        uint64_t end = history_index_end(x, t);
        for (size_t k = 0; k < 8; k++) {
            uint64_t i = history_index_find(x, t, keys[k / 2], k & 1);
            if (i > end)
                abort();
            for (; i < end; i++) {
                const struct history_entry *e = history_index_entry(x, i);
                struct mcfs_slice key = history_index_key(x, e);
                sum +=
                    e->size + e->place + key.len + (key.len ? (uint8_t)key.data[key.len - 1] : 0);
            }
        }
    }
    if (history_index_end(x, UINT32_MAX) ||
        history_index_find(x, UINT32_MAX, mcfs_slice("", 0), true))
        abort();
    return sum;
}

static void open_and_use(const void *bytes, size_t size)
{
    struct snap_info info = {0};
    volatile uint64_t sum = 0;
    if (size >= HEADER) { /* whichever snapshot it says it is of */
        memcpy(&info.replica_next_id, (const char *)bytes + NEXT_ID_AT, 8);
        memcpy(&info.created_ms, (const char *)bytes + CREATED_AT, 8);
    }
    struct history_index *x = history_index_from(bytes, size, "20260101_000000_000", &info);
    if (x)
        sum += use(x);
    history_index_close(x);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *copy = calloc(1, size ? size : 1); /* aligned as a map is */
    uint32_t tenants = 0, sum = 0;
    if (!copy)
        abort();
    if (size)
        memcpy(copy, data, size);
    open_and_use(copy, size);
    if (size >= HEADER) {
        memcpy(&tenants, copy + TENANTS_AT, sizeof(tenants));
        memset(copy + SUM_AT, 0, sizeof(sum));
        if (tenants <= (size - HEADER) / TENANT) {
            sum = mcfs_crc32c(0, copy, HEADER + tenants * TENANT);
            memcpy(copy + SUM_AT, &sum, sizeof(sum));
            open_and_use(copy, size);
        }
    }
    free(copy);
    return 0;
}
