/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_SNAPSHOT_CONTAINER_H
#define MCFS_SNAPSHOT_CONTAINER_H

/*
 * The files `metadata` and `mooncakefs` are MessagePack maps whose bulk is one field, `shards`: a
 * map from shard to frame.  A container is walked through a window of ranged reads that takes in
 * the heads and passes over the frames, so that neither size nor claims cost memory.
 */

#include "common/buf.h"
#include <mooncakefs/error.h>
#include <mooncakefs/object.h>
#include <mooncakefs/object_store.h>

#define SHARD_FRAME_MAX (512u << 20) /* bytes of one shard, packed */

/* Where a shard's frame lies in a file. */
struct place {
    uint64_t offset;
    uint32_t shard, length;
};

struct places {
    struct place *v;
    uint32_t count;
};

struct walk {
    struct mcfs_object_store *store;
    const char *path; /* in the store */
    const char *name; /* for errors: "<id>/<file>" */
    uint64_t at;      /* of the window in the file */
    struct mcfs_buf window;
    size_t pos; /* in the window */
};

static inline uint64_t walk_position(const struct walk *w)
{
    return w->at + w->pos;
}

/* Moves the window to a byte of the file. */
void walk_seek(struct walk *w, uint64_t to);
void walk_free(struct walk *w);

int walk_corrupt(const struct walk *w, struct mcfs_error *err);

/* The head of a map; its fields follow. */
int walk_map(struct walk *w, uint32_t *count, struct mcfs_error *err);

/* A field's name, at most cap - 1 bytes. */
int walk_name(struct walk *w, char *name, size_t cap, struct mcfs_error *err);

/* One whole value that is not large; its encoded bytes are appended to out. */
int walk_value(struct walk *w, struct mcfs_buf *out, struct mcfs_error *err);

/* The map `shards`: notes the places and passes over the frames.  Each shard at most once. */
int walk_places(struct walk *w, struct places *out, struct mcfs_error *err);

/* Whether the file ends here. */
int walk_end(struct walk *w, struct mcfs_error *err);

/* Reads len bytes at off in pieces, so that a length that the file does not back costs nothing;
 * fewer are an error. */
int read_range(struct mcfs_object_store *store, const char *path, const char *name, uint64_t off,
               uint64_t len, struct mcfs_buf *out, struct mcfs_error *err);

#endif
