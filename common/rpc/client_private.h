/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_COMMON_RPC_CLIENT_PRIVATE_H
#define MCFS_COMMON_RPC_CLIENT_PRIVATE_H

/* The client's calls, for the two ways of hearing an answer: whole (client.c) and as it arrives
 * (incoming.c). */

#include "common/rpc/rpc.h"

#include <pthread.h>

#define IDLE_MAX 64 /* connections kept for the next call */

struct mcfs_rpc_client {
    char *address;
    const struct mcfs_rpc_keys *keys;
    uint32_t timeout_ms;
    pthread_mutex_t lock; /* guards idle, idle_count, next_id */
    int idle[IDLE_MAX];
    unsigned idle_count;
    uint32_t next_id;
};

/* Receives the answer to a request that was sent.  Returns 1 when the peer has answered (err holds
 * its error), 0 at the deadline, -1 when the connection failed. */
struct rpc_hearing {
    int (*hear)(void *arg, int fd, uint32_t msgid, int64_t deadline_ms,
                const struct mcfs_cancel *cancel, struct mcfs_error *err);
    void *arg;
};

/* mcfs_rpc_call with any hearing.  *kept gets the connection of a call that was answered without an
 * error; NULL: it goes back to the pool. */
int rpc_client_call(struct mcfs_rpc_client *c, const char *method, const struct mcfs_buf *params,
                    const struct rpc_hearing *hearing, int *kept, bool *repeated,
                    const struct mcfs_cancel *cancel, struct mcfs_error *err);

/* Hears an answer whole; arg is a struct mcfs_rpc_reply. */
int rpc_hear_reply(void *arg, int fd, uint32_t msgid, int64_t deadline_ms,
                   const struct mcfs_cancel *cancel, struct mcfs_error *err);

void rpc_client_give_back(struct mcfs_rpc_client *c, int fd);

/* Waits for events on fd.  Returns 1 ready, 0 deadline, -1 cancelled or failed. */
int rpc_wait_for(int fd, short events, int64_t deadline_ms, const struct mcfs_cancel *cancel,
                 struct mcfs_error *err);

/* Takes apart what an answer begins with: [1, msgid, nil, and the head of a binary value, whose
 * length goes to *value.  Returns its bytes; 0: more are needed, or it is something else (*other).
 */
size_t rpc_incoming_head(const uint8_t *p, size_t len, uint32_t msgid, uint64_t *value,
                         bool *other);

#endif
