/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_MASTER_WAITING_H
#define MCFS_MASTER_WAITING_H

/*
 * Puts into memory that found no room and wait for it.  One that waits has begun nothing and holds
 * nothing: it is only a request whose answer is late, so that losing it (its caller leaves, the
 * master dies) loses nothing.  No event loop waits: the evictor's thread asks again for them, in
 * the order in which they came, whenever it has evicted and every few milliseconds between, and
 * gives the answers.  A smaller put does not wait for a larger one before it that does not fit.
 *
 * What waits is bounded in number, and each in time (wait_ms in PutStart's config, 0: not at all).
 */

#include "master/evict.h"
#include "master/service_segment.h"

#define PUT_WAIT_MS 3000 /* less than clients wait for an answer */
#define PUT_WAIT_MAX_MS 60000
#define PUTS_WAITING_MAX 4096

struct waiting_puts; /* NULL: nobody can wait */

struct waiting_puts *waiting_puts_new(struct master *m, struct mcfs_error *err);
/* Nobody asks for room any more; those that wait get no answer. */
void waiting_puts_free(struct waiting_puts *w);

/* For the evictor's config. */
struct evict_waiters waiting_puts_waiters(struct waiting_puts *w);

/* Takes over the request of a put that found no room, copying what it needs: 0, and its handler
 * gives no answer; or -1 when too many wait already (err is extended) or there is no memory for one
 * more (err stays).  Any thread. */
int waiting_puts_add(struct waiting_puts *w, struct mcfs_rpc_request *r, const struct put_start *p,
                     const struct memory_config *c, struct mcfs_error *err);

uint32_t waiting_puts_count(const struct waiting_puts *w);

#endif
