/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_BACKENDS_ROOM_H
#define MCFS_BACKENDS_ROOM_H

/* Room in a tier: a put claims its bytes before it writes them. */

#include <mooncakefs/error.h>

#include <stdatomic.h>

/* Of a store, as it is now. */
struct room {
    const char *dir;
    int dir_fd;
    uint64_t capacity_bytes; /* 0: what the disk holds */
    _Atomic uint64_t *used;  /* bytes, those of removed objects that are not given back included */
    uint64_t needed;         /* of those; the rest comes back with a flush */
    int (*flush)(void *store, struct mcfs_error *err);
    void *store;
};

/* Whether a value of so many bytes leaves enough on the disk for logs and indexes; true where that
 * cannot be told, and for small ones.  Any thread. */
bool room_on_disk(int dir_fd, uint64_t bytes);

/* Adds the bytes to `used`; NO_AVAILABLE_HANDLE when tier or disk are full.  May flush.  Any
 * thread. */
int room_claim(const struct room *r, uint64_t bytes, struct mcfs_error *err);

#endif
