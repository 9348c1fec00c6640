/* SPDX-License-Identifier: Apache-2.0 */
#include "snapshot/frame.h"

#include "common/cleanup.h"

#include <zstd.h>

#define LEVEL 3
#define PIECE (256u << 10)
#define RATIO_MAX 1000
#define FREE_OF_RATIO (64ull << 20) /* bytes that any frame may hold */

static void free_ctx(ZSTD_DCtx **ctx)
{
    ZSTD_freeDCtx(*ctx);
}

/* Bytes that a frame of so many may hold. */
static uint64_t content_limit(size_t frame_len)
{
    uint64_t limit = FREE_OF_RATIO + (uint64_t)frame_len * RATIO_MAX;
    return MCFS_MIN(limit, FRAME_CONTENT_MAX);
}

int frame_pack(struct ZSTD_CCtx_s *ctx, struct mcfs_slice content, struct mcfs_buf *out,
               struct mcfs_error *err)
{
    if (content.len > FRAME_CONTENT_MAX)
        return mcfs_fail_errno(err, EFBIG, "%zu bytes for one zstd frame", content.len);
    size_t bound = ZSTD_compressBound(content.len);
    uint8_t *to = mcfs_buf_reserve(out, bound);
    if (!to)
        return mcfs_fail_errno(err, ENOMEM, "zstd");
    size_t n = ctx ? ZSTD_compressCCtx(ctx, to, bound, content.data, content.len, LEVEL)
                   : ZSTD_compress(to, bound, content.data, content.len, LEVEL);
    if (ZSTD_isError(n))
        return mcfs_fail(err, MCFS_INTERNAL_ERROR, "zstd: %s", ZSTD_getErrorName(n));
    out->len += n;
    return 0;
}

static int corrupt(struct mcfs_error *err, const char *what)
{
    return mcfs_fail(err, MCFS_FILE_READ_FAIL, "a zstd frame %s", what);
}

/* A frame that tells its size: at once.  Untouched pages of the reservation cost nothing. */
static int unpack_known(ZSTD_DCtx *ctx, struct mcfs_slice frame, uint64_t size,
                        struct mcfs_buf *out, struct mcfs_error *err)
{
    uint8_t *to = mcfs_buf_reserve(out, size ? (size_t)size : 1);
    if (!to)
        return mcfs_fail_errno(err, ENOMEM, "zstd");
    size_t n = ZSTD_decompressDCtx(ctx, to, (size_t)size, frame.data, frame.len);
    if (ZSTD_isError(n) || n != size)
        return mcfs_fail(err, MCFS_FILE_READ_FAIL, "zstd: %s",
                         ZSTD_isError(n) ? ZSTD_getErrorName(n) : "another size than announced");
    out->len += n;
    return 0;
}

/* A frame that does not: in pieces. */
static int unpack_stream(ZSTD_DCtx *ctx, struct mcfs_slice frame, uint64_t limit,
                         struct mcfs_buf *out, struct mcfs_error *err)
{
    ZSTD_inBuffer in = {frame.data, frame.len, 0};
    size_t start = out->len, left = 1;
    while (left != 0) {
        uint8_t *to = mcfs_buf_reserve(out, PIECE);
        if (!to)
            return mcfs_fail_errno(err, ENOMEM, "zstd");
        ZSTD_outBuffer piece = {to, PIECE, 0};
        left = ZSTD_decompressStream(ctx, &piece, &in);
        out->len += piece.pos;
        if (ZSTD_isError(left))
            return mcfs_fail(err, MCFS_FILE_READ_FAIL, "zstd: %s", ZSTD_getErrorName(left));
        if (out->len - start > limit)
            return corrupt(err, "that holds too much");
        if (left != 0 && piece.pos < PIECE && in.pos == in.size)
            return corrupt(err, "that is cut short");
    }
    return 0;
}

static int unpack(struct mcfs_slice frame, uint64_t limit, uint64_t *size, struct mcfs_buf *out,
                  struct mcfs_error *err)
{
    unsigned long long claimed = ZSTD_getFrameContentSize(frame.data, frame.len);
    size_t packed = ZSTD_findFrameCompressedSize(frame.data, frame.len);
    if (claimed == ZSTD_CONTENTSIZE_ERROR || ZSTD_isError(packed))
        return corrupt(err, "that is cut short or none at all");
    if (packed != frame.len)
        return corrupt(err, "with something behind it");
    bool known = claimed != ZSTD_CONTENTSIZE_UNKNOWN;
    if (known && (claimed > limit || (size && claimed != *size)))
        return mcfs_fail(err, MCFS_FILE_READ_FAIL, "a zstd frame that claims to hold %llu bytes",
                         claimed);
    _cleanup_(free_ctx) ZSTD_DCtx *ctx = ZSTD_createDCtx();
    if (!ctx)
        return mcfs_fail_errno(err, ENOMEM, "zstd");
    return known ? unpack_known(ctx, frame, claimed, out, err)
                 : unpack_stream(ctx, frame, limit, out, err);
}

int frame_unpack(struct mcfs_slice frame, struct mcfs_buf *out, struct mcfs_error *err)
{
    return unpack(frame, content_limit(frame.len), NULL, out, err);
}

int frame_unpack_exact(struct mcfs_slice frame, uint64_t size, struct mcfs_buf *out,
                       struct mcfs_error *err)
{
    size_t start = out->len;
    if (unpack(frame, MCFS_MIN(size, FRAME_CONTENT_MAX), &size, out, err))
        return -1;
    return out->len - start == size ? 0 : corrupt(err, "of another size than expected");
}
