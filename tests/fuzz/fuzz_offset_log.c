/* SPDX-License-Identifier: Apache-2.0 */
/* The input: u32 length of an index, the index, and a journal. */
#include "backends/offset/offset_image.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint32_t len = 0;
    struct offset_log_head head;
    struct offset_image image;
    struct mcfs_error err = MCFS_ERROR_INIT;
    offset_log_parse_head(data, size, OFFSET_LOG_JOURNAL, &head, &err);
    for (size_t at = 0; at < size;) {
        struct offset_log_record r;
        size_t n = offset_log_parse_record(data + at, size - at, &r);
        at += n ? n : 1;
    }
    if (size < sizeof(len))
        return 0;
    memcpy(&len, data, sizeof(len));
    data += sizeof(len);
    size -= sizeof(len);
    len = len < size ? len : (uint32_t)size;
    offset_image_replay(mcfs_slice(data, len), mcfs_slice(data + len, size - len), NULL, &image,
                        &err);
    offset_list_free(&image.entries);
    return 0;
}
