/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_BACKENDS_BUCKET_BATCH_H
#define MCFS_BACKENDS_BUCKET_BATCH_H

/* Inside of a put: one object between its beginning and its end, and many large ones at once. */

#include "backends/bucket/bucket.h"

/* ---- bucket_write.c ---- */

/* A put of one object that is under way. */
struct bucket_put {
    struct mcfs_backend_put *item;
    struct mcfs_buf key;
    struct pending_put pending;
    struct index_stripe *stripe;
    struct entry *entry;
};

/* DONE: it is stored already, and the item consumed.  BUSY: another put of the version is under
 * way; only when it is not waited for. */
enum put_state { PUT_BEGUN, PUT_DONE, PUT_FAILED, PUT_BUSY };

/* Begins a put; after PUT_BEGUN put_end must follow. */
enum put_state put_begin(struct store *s, struct bucket_put *p, struct mcfs_backend_put *item,
                         bool wait);

/* Enters the object in the index when rc is 0, else drops it; returns 0 or -1. */
int put_end(struct store *s, struct bucket_put *p, int rc);

/* A bucket for one object has its value and its record.  The caller holds its lock. */
void bucket_link_single(struct store *s, struct bucket *b, struct entry *e);

/* A bucket for one object of that size did not come about: its room is given back, and a flush
 * frees it.  The caller holds its lock. */
void bucket_give_up_single(struct store *s, struct bucket *b, uint64_t size);

/* ---- bucket_batch.c ---- */

#define BATCH_MAX 128u /* values at once; each holds one or two descriptors */

struct flight;
struct batch {
    struct store *store;
    struct flight *flights;
    size_t count, cap;
    struct io_batch io; /* when count > 0 */
    bool direct;
};

/* For those of the items that batch_takes; 0 or -1 without memory. */
int batch_begin(struct batch *t, struct store *s, const struct mcfs_backend_put *items, size_t n);
bool batch_takes(const struct store *s, const struct mcfs_backend_put *item);

/* Each returns the number of items that have failed, of the added ones. */
size_t batch_add(struct batch *t, struct mcfs_backend_put *item);
size_t batch_land(struct batch *t); /* all that were added are stored */
size_t batch_end(struct batch *t);

#endif
