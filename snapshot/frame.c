/* SPDX-License-Identifier: Apache-2.0 */
#include "snapshot/frame.h"

#include <zstd.h>

#define LEVEL 3
#define PIECE (1u << 20)

int frame_pack(struct ZSTD_CCtx_s *ctx, struct mcfs_slice content, struct mcfs_buf *out,
               struct mcfs_error *err)
{
    size_t bound = ZSTD_compressBound(content.len);
    uint8_t *to = mcfs_buf_reserve(out, bound);
    if (!to)
        return mcfs_fail_errno(err, ENOMEM, "zstd");
    size_t n = ZSTD_compressCCtx(ctx, to, bound, content.data, content.len, LEVEL);
    if (ZSTD_isError(n))
        return mcfs_fail(err, MCFS_INTERNAL_ERROR, "zstd: %s", ZSTD_getErrorName(n));
    out->len += n;
    return 0;
}

int frame_unpack(struct mcfs_slice frame, struct mcfs_buf *out, struct mcfs_error *err)
{
    unsigned long long claimed = ZSTD_getFrameContentSize(frame.data, frame.len);
    if (claimed == ZSTD_CONTENTSIZE_ERROR)
        return mcfs_fail(err, MCFS_FILE_READ_FAIL, "not a zstd frame");
    if (claimed != ZSTD_CONTENTSIZE_UNKNOWN && claimed > FRAME_CONTENT_MAX)
        return mcfs_fail(err, MCFS_FILE_READ_FAIL, "a zstd frame that claims to hold %llu bytes",
                         claimed);
    ZSTD_DCtx *ctx = ZSTD_createDCtx();
    ZSTD_inBuffer in = {frame.data, frame.len, 0};
    size_t left = 1, start = out->len;
    int rc = ctx ? 0 : mcfs_fail_errno(err, ENOMEM, "zstd");
    while (rc == 0 && left != 0) {
        uint8_t *to = mcfs_buf_reserve(out, PIECE);
        if (!to) {
            rc = mcfs_fail_errno(err, ENOMEM, "zstd");
            break;
        }
        ZSTD_outBuffer piece = {to, PIECE, 0};
        left = ZSTD_decompressStream(ctx, &piece, &in);
        out->len += piece.pos;
        if (ZSTD_isError(left))
            rc = mcfs_fail(err, MCFS_FILE_READ_FAIL, "zstd: %s", ZSTD_getErrorName(left));
        else if (out->len - start > FRAME_CONTENT_MAX)
            rc = mcfs_fail(err, MCFS_FILE_READ_FAIL, "a zstd frame that holds too much");
        else if (left != 0 && piece.pos < PIECE && in.pos == in.size)
            rc = mcfs_fail(err, MCFS_FILE_READ_FAIL, "a zstd frame that is cut short");
    }
    if (rc == 0 && in.pos != in.size)
        rc = mcfs_fail(err, MCFS_FILE_READ_FAIL, "something follows a zstd frame");
    ZSTD_freeDCtx(ctx);
    return rc;
}
