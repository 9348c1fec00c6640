/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_SNAPSHOT_REPLICA_H
#define MCFS_SNAPSHOT_REPLICA_H

/* One replica as MessagePack: `[id, status, type, payload]`. */

#include "common/id.h"
#include "common/mp.h"
#include "snapshot/snapshot.h"

/* Far more than any object has; what claims more is refused before memory is taken for it. */
#define REPLICAS_MAX 65536

/* Replicas of one object after the other, in an array that is kept. */
struct replica_list {
    struct snap_replica *v;
    uint32_t cap;
};

/* Reads n replicas; false when one has another form or memory is short. */
bool replica_list_read(struct replica_list *l, struct mp_reader *p, uint64_t n);

static inline void replica_list_free(struct replica_list *l)
{
    free(l->v);
    *l = (struct replica_list){NULL, 0};
}

/* client_text: of LOCAL_DISK, as mcfs_id_format writes it. */
void replica_put(const struct snap_replica *r, const char *client_text, struct mcfs_buf *out);

/* An id in text form; opaque to a directory, so what is none is nobody's. */
static inline struct mcfs_id parse_id_leniently(struct mcfs_slice text)
{
    struct mcfs_id id;
    return mcfs_id_parse(text, &id) == 0 ? id : (struct mcfs_id){0, 0};
}

#endif
