/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/file_per_key/files_marker.h"

#include "common/crc32c.h"

#include <stdio.h>

#define LINE_MAX_BYTES 128u
#define CHECKSUM ", crc32c "

void files_marker_put(struct mcfs_buf *b)
{
    size_t at = b->len;
    mcfs_buf_printf(b, "mooncakefs file per key, format %u", FILES_FORMAT);
    if (!b->failed)
        mcfs_buf_printf(b, CHECKSUM "%08x\n", mcfs_crc32c(0, b->data + at, b->len - at));
}

int files_marker_parse(const char *text, size_t len, struct mcfs_error *err)
{
    char line[LINE_MAX_BYTES], again[LINE_MAX_BYTES];
    unsigned format, crc;
    if (len == 0 || len >= sizeof(line) || memchr(text, 0, len))
        return mcfs_fail(err, MCFS_FILE_READ_FAIL, "not the marker of a file-per-key store");
    memcpy(line, text, len);
    line[len] = 0;
    const char *end = strstr(line, CHECKSUM);
    /* Written again, it is the same: nothing else is one. */
    if (!end ||
        sscanf(line, "mooncakefs file per key, format %9u" CHECKSUM "%8x", &format, &crc) != 2 ||
        crc != mcfs_crc32c(0, line, (size_t)(end - line)) ||
        snprintf(again, sizeof(again), "mooncakefs file per key, format %u" CHECKSUM "%08x\n",
                 format, crc) != (int)len ||
        memcmp(again, line, len) != 0)
        return mcfs_fail(err, MCFS_FILE_READ_FAIL, "not the marker of a file-per-key store");
    if (format != FILES_FORMAT)
        return mcfs_fail(err, MCFS_INVALID_VERSION,
                         "written by another mooncakefs (file-per-key format %u; this one knows "
                         "%u)",
                         format, FILES_FORMAT);
    return 0;
}
