/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_COMMON_RPC_CONN_H
#define MCFS_COMMON_RPC_CONN_H

/*
 * One accepted connection: what has been received and not yet taken apart (only when a frame
 * arrived in pieces: an idle connection holds no buffer), and what is still to be sent, as a queue
 * of memory and file runs.
 */

#include "common/rpc/auth.h"
#include "common/rpc/rpc.h"

#include <pthread.h>
#include <stdatomic.h>

struct out_chunk {
    struct out_chunk *next;
    struct mcfs_buf buf;
    size_t sent;
    struct mcfs_rpc_file file; /* follows buf; fd -1: none */
};

struct mcfs_rpc_conn {
    int fd;
    int epoll_fd;
    atomic_uint refs;
    _Atomic uint64_t tag;

    /* Loop thread only. */
    struct mcfs_buf in;
    struct mp_scan scan;
    struct rpc_auth *auth; /* until the caller has proven a key; NULL: needs none any more */
    const struct mcfs_rpc_key *key;    /* that it has proven, or NULL */
    struct mcfs_rpc_conn *prev, *next; /* all connections of the loop */

    pthread_mutex_t out_lock; /* guards what follows; innermost lock */
    struct out_chunk *out_head, *out_tail;
    uint64_t out_bytes;
    uint32_t events; /* what epoll watches */
    bool gone;
};

/* Sends what it can of data (and then file, when its fd is not -1), and queues the rest.  Returns
 * -1 when the connection is broken. */
int conn_send(struct mcfs_rpc_conn *c, const void *data, size_t len,
              const struct mcfs_rpc_file *file);

/* Goes on sending the queue when the socket has room again.  Returns -1 when it is broken. */
int conn_flush(struct mcfs_rpc_conn *c);

/* Appends error and result of an answer that is an error. */
void rpc_put_error(struct mcfs_buf *b, const struct mcfs_error *e);

/* Marks the connection gone and drops its queue; notify fails from then on. */
void conn_shut(struct mcfs_rpc_conn *c);

#endif
