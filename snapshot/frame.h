/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_SNAPSHOT_FRAME_H
#define MCFS_SNAPSHOT_FRAME_H

/* One zstd frame: level 3, content size in its head (Mooncake refuses frames without it). */

#include "common/buf.h"
#include <mooncakefs/error.h>
#include <mooncakefs/object.h>

#define FRAME_CONTENT_MAX (1ull << 30) /* bytes that one frame may unpack to */

struct ZSTD_CCtx_s;

/* Appends the frame of `content` to out; ctx may be NULL for rare use. */
int frame_pack(struct ZSTD_CCtx_s *ctx, struct mcfs_slice content, struct mcfs_buf *out,
               struct mcfs_error *err);

/* Appends what a frame holds to out.  Memory stays in proportion to the frame: MessagePack of
 * distinct names does not shrink a thousandfold, so what claims to is refused. */
int frame_unpack(struct mcfs_slice frame, struct mcfs_buf *out, struct mcfs_error *err);

/* The same for a frame that must hold exactly `size` bytes, however well they were packed. */
int frame_unpack_exact(struct mcfs_slice frame, uint64_t size, struct mcfs_buf *out,
                       struct mcfs_error *err);

#endif
