/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_COMMON_RECORD_H
#define MCFS_COMMON_RECORD_H

/*
 * Records of a file that is appended to (docs/formats.md): length and CRC-32C, 4 bytes each,
 * little-endian, then that many bytes of MessagePack.  A record that was cut short is none.
 */

#include "common/buf.h"
#include "common/mp.h"

#define MCFS_RECORD_MAX 65536u /* bytes of the content */

/* Begins a record; what is appended from here to mcfs_record_end is its content.  Returns what that
 * takes as `at`. */
size_t mcfs_record_begin(struct mcfs_buf *b);
void mcfs_record_end(struct mcfs_buf *b, size_t at);

/* The record that data begins with: its content and its bytes in all, 0 when there is none that is
 * whole. */
size_t mcfs_record_read(const void *data, size_t len, struct mp_reader *content);

#endif
