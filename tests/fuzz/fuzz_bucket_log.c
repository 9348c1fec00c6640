/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/bucket/bucket_log.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mcfs_error err;
    uint64_t id;
    log_parse_header(data, size, &id, &err);
    size_t at = size < LOG_HEADER_SIZE ? size : LOG_HEADER_SIZE;
    while (at < size) {
        struct log_record r;
        size_t n = log_parse_record(data + at, size - at, &r);
        at += n ? n : 1;
    }
    return 0;
}
