/* SPDX-License-Identifier: Apache-2.0 */
/* kv_cache.meta. */
#include "backends/offset/offset_meta.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct offset_meta m;
    uint64_t sum = 0;
    if (offset_meta_parse(data, size, &m, NULL) == 0) {
        for (uint32_t i = 0; i < m.node_count; i++) {
            struct offset_node n = offset_meta_node(&m, i);
            sum += n.used ? n.offset + n.length : 1;
        }
        sum += offset_meta_was_evicted(&m, mcfs_slice(data, size < 15 ? size : 15));
    }
    offset_meta_free(&m);
    (void)sum;
    return 0;
}
