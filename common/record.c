/* SPDX-License-Identifier: Apache-2.0 */
#include "common/record.h"

#include "common/crc32c.h"

#include <endian.h>
#include <string.h>

#define HEAD 8u

size_t mcfs_record_begin(struct mcfs_buf *b)
{
    size_t at = b->len;
    mcfs_buf_append(b, "\0\0\0\0\0\0\0\0", HEAD);
    return at;
}

void mcfs_record_end(struct mcfs_buf *b, size_t at)
{
    if (b->failed)
        return;
    uint32_t len = (uint32_t)(b->len - at - HEAD);
    uint32_t head[2] = {htole32(len), htole32(mcfs_crc32c(0, b->data + at + HEAD, len))};
    memcpy(b->data + at, head, HEAD);
}

size_t mcfs_record_read(const void *data, size_t len, struct mp_reader *content)
{
    const char *p = data;
    uint32_t head[2];
    if (len < HEAD)
        return 0;
    memcpy(head, p, HEAD);
    uint32_t size = le32toh(head[0]);
    if (size > MCFS_RECORD_MAX || size > len - HEAD ||
        mcfs_crc32c(0, p + HEAD, size) != le32toh(head[1]))
        return 0;
    *content = mp_reader(p + HEAD, size);
    return HEAD + size;
}
