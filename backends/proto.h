/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_BACKENDS_PROTO_H
#define MCFS_BACKENDS_PROTO_H

/* The part of the protobuf wire format that Mooncake's files use: varints and length-delimited
 * bytes; fixed-size fields are stepped over. */

#include "common/buf.h"
#include "common/cursor.h"
#include <mooncakefs/object.h>

/* A field's number and its content: a number, or bytes. */
struct proto_field {
    uint64_t number, value;
    struct mcfs_slice bytes; /* borrowed from the input */
    bool is_bytes;
};

/* Takes the next field; false when the input is malformed (end is for the caller to see). */
bool proto_next(struct mcfs_cursor *c, struct proto_field *f);

void proto_put_varint(struct mcfs_buf *b, uint64_t v);
void proto_put_int(struct mcfs_buf *b, unsigned field, uint64_t v); /* zero is left out */
void proto_put_bytes(struct mcfs_buf *b, unsigned field, struct mcfs_slice bytes);

#endif
