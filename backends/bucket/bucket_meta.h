/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_BACKENDS_BUCKET_META_H
#define MCFS_BACKENDS_BUCKET_META_H

/* Mooncake's `<id>.meta`: one protobuf message {1: int64 data_size, 2: repeated bytes storage keys,
 * 3: repeated {1: offset, 2: key_size, 3: data_size}}, keys and places in the same order. */

#include "common/buf.h"
#include <mooncakefs/object.h>

struct meta_place {
    uint64_t offset, key_size, data_size; /* the value lies at offset + key_size */
};

void meta_put_size(struct mcfs_buf *b, uint64_t data_size);
void meta_put_key(struct mcfs_buf *b, struct mcfs_slice key);
void meta_put_place(struct mcfs_buf *b, const struct meta_place *place);

/* Calls fn for each object.  Returns their number, or -1 when the bytes are no such message, when
 * keys and places differ in number, or when a place is negative. */
int64_t meta_parse(const void *data, size_t len, uint64_t *data_size,
                   void (*fn)(struct mcfs_slice key, const struct meta_place *place, void *arg),
                   void *arg);

#endif
