/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_MASTER_OBJECT_MEMORY_H
#define MCFS_MASTER_OBJECT_MEMORY_H

/*
 * Memory replicas of objects: the ranges that a put has between PutStart and PutEnd, those that a
 * record's side block names, and how they come back.  A range of an object is never free while a
 * lease stands under which somebody may read it.
 */

#include "master/record.h"

/* Ranges of puts that have begun, by version.  Own lock; inside shards, outside segments. */
struct put_spaces;
struct put_spaces *put_spaces_new(void);
void put_spaces_free(struct put_spaces *t);

/* Forgets them all without giving them back: the segments are cleared, too. */
void put_spaces_clear(struct put_spaces *t);

/* Gives back what a put that has ended or is given up still has. */
void put_space_forget(struct directory *d, uint64_t version);

/* Whether the put may end so: its ranges are there, and at least one lies in a segment that is.
 * OBJECT_NOT_FOUND, SEGMENT_NOT_FOUND, INVALID_PARAMS. */
int put_space_check(struct directory *d, const struct put_end *p, uint64_t size,
                    struct mcfs_error *err);

/* A side block with the put's memory replicas, complete, and a group, for the record of a key (see
 * record_new_group); 0 without memory.  The put has no ranges any more when there is one. */
uint32_t put_space_block(struct directory *d, struct key_hash h, struct mcfs_slice group,
                         uint64_t version);

/* For a checkpoint's child, which takes no lock: visits the ranges of all puts. */
void put_spaces_peek(struct directory *d,
                     void (*fn)(const struct segment_range *r, uint64_t id, int64_t started_mono_ms,
                                void *arg),
                     void *arg);

/* ---- the caller holds the shard's lock ---- */

/* Milliseconds that a lease of anybody on the object still lasts, its group's and those of an
 * earlier master included. */
uint32_t object_lease_left_ms(struct directory *d, const struct record *r);

/* The range of a memory replica. */
struct segment_range side_range(const struct side_replica *s);

/* Gives the range back, when the object's leases have ended. */
void memory_replica_release(struct directory *d, const struct record *r,
                            const struct side_replica *s);

bool record_has_memory(const struct directory *d, const struct record *r);

/* Memory replicas that become another record's, under both shards' locks.  Their ranges and ids
 * stay as they are, so that whoever reads there goes on. */
struct memory_move {
    uint32_t block; /* a side block for the other record with the group; 0: it needs none */
    uint32_t count; /* of the replicas that will be in it, and are the first one's for now */
    bool alone;     /* `client` does not store the object, so these are all there will be */
};

/* For the record of a key of `client`'s choice.  Until memory_move_detach the block is freed by
 * record_free_group and nothing has happened.  NO_AVAILABLE_HANDLE; SEGMENT_NOT_FOUND: the segments
 * of all that there is have gone this very moment. */
int memory_move_begin(struct directory *d, struct key_hash h, struct mcfs_slice group,
                      const struct record *from, uint32_t client, struct memory_move *m,
                      struct mcfs_error *err);
/* The replicas are no longer the first record's. */
void memory_move_detach(struct directory *d, const struct memory_move *m,
                        const struct record *from);
/* They are those of the record that has the block (object_publish) and, without an inline replica
 * when `alone`, all that it has. */
void memory_move_attach(struct directory *d, const struct memory_move *m, struct record *to);

/* Brings what a walk over a shard's table will touch soon: the record says where its side is. */
void record_walk_prefetch(struct directory *d, uint32_t shard, uint32_t i);

/* Takes the memory replicas out, all or those in segments that are gone, and adds up their bytes.
 * Returns whether a complete replica is left. */
bool record_drop_memory(struct directory *d, struct record *r, bool all, uint64_t *bytes);

/* ---- segments that come and go ---- */

/* segments_mount, told of the puts under way. */
int directory_mount_segment(struct directory *d, const struct segment_info *info, bool *gone,
                            struct mcfs_error *err);

/* Takes the replicas out that lie in segments that are gone, and the objects that have no other
 * complete one; returns how many objects went.  Takes time in proportion to the directory. */
uint64_t directory_sweep_segments(struct directory *d);

#endif
