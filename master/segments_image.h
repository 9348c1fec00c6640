/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_MASTER_SEGMENTS_IMAGE_H
#define MCFS_MASTER_SEGMENTS_IMAGE_H

/* Segments, memory replicas and ranges of puts as a snapshot holds them. */

#include "master/record.h"
#include "snapshot/snapshot.h"

/* Adds a snapshot's segments, which are awaited from then on, before any of its objects; content as
 * snap_segments_decode takes it.  -1: it has another form. */
int directory_restore_segments(struct directory *d, struct mcfs_slice content,
                               struct mcfs_error *err);

/* All objects are there: what is held for failed puts (as snap_discarded_decode takes it) stays
 * held, and so does for a while what is allocated and no object's. */
int directory_restore_held(struct directory *d, struct mcfs_slice discarded,
                           struct mcfs_error *err);

/* Claims the range that a MEMORY replica's payload names; false, and counted, when there is none.
 */
bool restore_memory_replica(struct directory *d, const struct snap_replica *replica,
                            struct segment_range *range);

/* ---- in the checkpoint's child, which takes no lock ---- */

/* A MEMORY replica's payload. */
void encode_memory_replica(struct directory *d, const struct segment_range *range,
                           struct mcfs_buf *out);

/* The file `segments`; carried: that of the snapshot which was restored, whose local disks stay
 * (without it they are made from the nodes).  Nothing is appended where neither has anything. */
int directory_encode_segments(struct directory *d, struct mcfs_slice carried,
                              const struct snap_node *nodes, uint32_t node_count,
                              struct mcfs_buf *out, struct mcfs_error *err);

/* Space held for failed puts; carried: as restored. */
int directory_encode_held(struct directory *d, struct mcfs_slice carried, struct mcfs_buf *out,
                          struct mcfs_error *err);

#endif
