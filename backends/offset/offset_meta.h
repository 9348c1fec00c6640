/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_BACKENDS_OFFSET_META_H
#define MCFS_BACKENDS_OFFSET_META_H

/*
 * `kv_cache.meta`, the checkpoint of Mooncake's offset_allocator_storage_backend: one protobuf
 * message {1: uint32 version, 2: bytes allocator_state, 3: uint64 insert_seq, 4: repeated {1:
 * uint64 seq, 2: bytes key}, 5: repeated bytes keys evicted in this batch}.  The allocator's state
 * is packed little-endian integers; of it only the nodes say where records are.
 */

#include "common/buf.h"
#include "common/offset_allocator.h"
#include <mooncakefs/error.h>
#include <mooncakefs/object.h>

#define OFFSET_META_VERSION 3u

struct offset_meta {
    uint32_t version;    /* when it is another than ours, nothing else is filled in */
    uint64_t insert_seq; /* records with this number or a greater one are younger */
    uint64_t capacity;   /* bytes */
    unsigned shift;      /* a node's numbers are bytes >> shift */
    uint32_t node_count;
    const uint8_t *nodes;       /* borrowed from the input */
    struct mcfs_slice *evicted; /* keys, sorted, borrowed from the input; the array is owned */
    size_t evicted_count;
};

struct offset_node {
    uint64_t offset, length; /* bytes */
    bool used;
};

/* Takes the message apart; INVALID_VERSION never (see version), INVALID_PARAMS for what is no such
 * message or passes the format's limits.  offset_meta_free in either case. */
int offset_meta_parse(const void *data, size_t len, struct offset_meta *out,
                      struct mcfs_error *err);
void offset_meta_free(struct offset_meta *m);

/* Node i < node_count. */
struct offset_node offset_meta_node(const struct offset_meta *m, uint32_t i);

/* Whether a key was evicted in the batch that the checkpoint ended. */
bool offset_meta_was_evicted(const struct offset_meta *m, struct mcfs_slice key);

/* Appends a checkpoint with this state of the allocator, but without its FIFO (field 4):
 * offset_meta_put_fifo adds that, one object at a time, the oldest first. */
void offset_meta_put(struct mcfs_buf *b, const struct mcfs_alloc_state *state, uint64_t insert_seq);
void offset_meta_put_fifo(struct mcfs_buf *b, uint64_t seq, struct mcfs_slice key);

#endif
