/* SPDX-License-Identifier: Apache-2.0 */
/* A record's head, as it lies in kv_cache.data. */
#include "backends/offset/offset_record.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct offset_record r;
    const char *wrong =
        offset_record_parse(data, size < OFFSET_RECORD_HEAD ? size : OFFSET_RECORD_HEAD, &r);
    if (!wrong && (r.value_at < OFFSET_RECORD_HEAD + (uint64_t)r.key_len || r.value_at % 4096 ||
                   r.length - r.value_at != r.value_len))
        abort();
    return 0;
}
