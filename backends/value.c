/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/value.h"

#include "common/cleanup.h"
#include "common/crc32c.h"
#include "common/file.h"

#include <inttypes.h>

#define CHUNK (128u << 10) /* fits the processor's cache */

int64_t value_read(const struct value_place *v, void *buf, size_t len, uint64_t off,
                   struct mcfs_error *err)
{
    if (off >= v->size)
        return 0;
    size_t want = (size_t)MCFS_MIN(len, v->size - off);
    ssize_t n = mcfs_pread_full(v->fd, buf, want, v->offset + off);
    if (n < 0)
        return mcfs_fail_errno(err, errno, "offset %" PRIu64, v->offset + off);
    if ((size_t)n < want)
        return mcfs_fail(err, MCFS_CHECKSUM_MISMATCH,
                         "offset %" PRIu64 ": the file ends inside an object", v->offset);
    return n;
}

int value_checksum(const struct value_place *v, uint32_t *crc, struct mcfs_error *err)
{
    size_t chunk = (size_t)MCFS_MIN(CHUNK, v->size);
    _cleanup_free_ char *buf = malloc(chunk ? chunk : 1);
    if (!buf)
        return mcfs_fail_errno(err, ENOMEM, "checksum");
    for (uint64_t done = 0; done < v->size;) {
        int64_t n = value_read(v, buf, chunk, done, err);
        if (n <= 0)
            return -1;
        *crc = mcfs_crc32c(*crc, buf, (size_t)n);
        done += (uint64_t)n;
    }
    return 0;
}

int value_verify(const struct value_place *v, uint32_t crc, struct mcfs_error *err)
{
    uint32_t got = 0;
    if (value_checksum(v, &got, err))
        return -1;
    if (got == crc)
        return 0;
    return mcfs_fail(err, MCFS_CHECKSUM_MISMATCH,
                     "offset %" PRIu64 ": the object's checksum is wrong", v->offset);
}
