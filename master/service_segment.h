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
};

/* Reads the value of one such name; false for another name, or a value of another form. */
bool read_memory_config(struct mp_reader *p, struct mcfs_slice name, struct memory_config *to);

/* "random" or "free_ratio_first"; false for anything else. */
bool segment_strategy_parse(struct mcfs_slice name, enum segment_strategy *to);

/* PutStart of a put into memory, with its answer. */
int put_start_in_memory(struct master *m, const struct put_start *p, const struct memory_config *c,
                        struct mcfs_buf *result, struct mcfs_error *err);

/* Text for an enum segment_state. */
const char *segment_state_name(uint8_t state);

/* What has to be done every second; the caller is in the directory. */
void segments_tick(struct master *m);

#endif
