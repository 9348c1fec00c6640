/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_FS_NAMESPACE_H
#define MCFS_FS_NAMESPACE_H

/*
 * Object keys as path components and back, injectively:
 *
 *   '%'                      %25          byte 0x00                %00
 *   "." and ".." alone       %2E, %2E%2E  an empty component       %-
 *   object beside directory  <dir>/%=     longer than NAME_PIECE   pieces, each but the last ending
 * in %+
 *
 * Everything else, control characters and bytes that are no UTF-8 included, stays as it is.  A
 * directory of the tree is a prefix that its children's keys begin with: "" for the root, "a/" for
 * the directory a, and "a/first-piece-of-a-long-name" for the directory of a split component.
 */

#include "common/buf.h"
#include <mooncakefs/object.h>

#define NAME_PIECE_MAX 1024 /* bytes of one path component that FUSE carries on every kernel */

enum name_kind {
    NAME_PLAIN,
    NAME_SELF,  /* %=: the object whose key is the directory's */
    NAME_PIECE, /* ends in %+: a directory that continues a long component */
    NAME_BAD,   /* a malformed escape */
};

/* Decodes one component; appends the raw bytes to out (nothing for NAME_SELF). */
enum name_kind namespace_decode(struct mcfs_slice name, struct mcfs_buf *out);

/* Appends the encoded form of one whole raw component that needs no splitting. */
void namespace_encode(struct mcfs_slice raw, struct mcfs_buf *out);

/* Encodes the part of a raw component that begins at `from` and fits one path component.  Returns
 * the raw bytes that it covers; when more follow, what was appended ends in "%+". */
size_t namespace_encode_piece(struct mcfs_slice raw, size_t from, struct mcfs_buf *out);

/* Appends the path of a key below keys/, without a leading slash.  is_shadowed: directories of that
 * name exist, so the object is its "%=". */
void namespace_path(struct mcfs_slice key, bool is_shadowed, struct mcfs_buf *out);

/* The key that a relative path names; false when an escape is malformed. */
bool namespace_key(struct mcfs_slice path, struct mcfs_buf *out);

#endif
