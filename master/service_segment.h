/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_MASTER_SERVICE_SEGMENT_H
#define MCFS_MASTER_SERVICE_SEGMENT_H

#include "master/master.h"
#include "master/object_memory.h"

#define PREFERRED_MAX 64

/* What PutStart's config says of a put into memory; slices are the request's. */
struct memory_config {
    bool given; /* replica_num was named: the put is one into memory */
    uint64_t replica_num;
    bool has_strategy;
    enum segment_strategy strategy;
    struct mcfs_slice preferred[PREFERRED_MAX];
    uint32_t preferred_count;
    uint64_t wait_ms; /* how long it waits for room */
};

/* What holds when nothing is said. */
void memory_config_init(struct memory_config *c);

/* Reads the value of one such name; false for another name, or a value of another form. */
bool read_memory_config(struct mp_reader *p, struct mcfs_slice name, struct memory_config *to);

/* PutStart of a put into memory, with its answer; without room it waits (waiting.h). */
int put_start_in_memory(struct master *m, const struct put_start *p, const struct memory_config *c,
                        struct mcfs_rpc_request *r, struct mcfs_error *err);

/* Begins it, or fails; result gets the answer.  *full: it found no room, and would have in emptier
 * segments.  again: it has found none before. */
int put_begin_in_memory(struct master *m, const struct put_start *p, const struct memory_config *c,
                        bool again, uint64_t *version, bool *full, struct mcfs_buf *result,
                        struct mcfs_error *err);

/* Text for an enum segment_state. */
const char *segment_state_name(uint8_t state);

/* What has to be done every second; the caller is in the directory. */
void segments_tick(struct master *m);

#endif
