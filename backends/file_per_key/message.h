/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_BACKENDS_MESSAGE_H
#define MCFS_BACKENDS_MESSAGE_H

/*
 * The content of a file of Mooncake's file_per_key_storage_backend: one protobuf message {1: bytes
 * storage key, 2: bytes value}.  The value may be gigabytes, so only what is around it is read.
 */

#include "common/buf.h"
#include <mooncakefs/error.h>

#define MESSAGE_KEY_MAX (1u << 20)

struct message {
    struct mcfs_buf key; /* owned */
    uint64_t value_at, value_size;
};

/* Reads len bytes at off; returns fewer only at the end, or -1 with errno set. */
typedef ssize_t (*message_read_fn)(void *arg, void *buf, size_t len, uint64_t off);

/* Takes a message of `size` bytes apart.  CHECKSUM_MISMATCH when it is none, or is cut short;
 * message_free in either case. */
int message_parse(message_read_fn read_at, void *arg, uint64_t size, struct message *out,
                  struct mcfs_error *err);
void message_free(struct message *m);

#endif
