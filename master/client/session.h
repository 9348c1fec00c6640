/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_MASTER_CLIENT_SESSION_H
#define MCFS_MASTER_CLIENT_SESSION_H

/* A node's session with the master; private to master/client. */

#include "master/client/client.h"

#include <pthread.h>
#include <stdatomic.h>

struct mcfs_master {
    struct mcfs_rpc_client *rpc;
    const struct mcfs_rpc_keys *keys;
    char *address, *node_name, *endpoint;
    struct mcfs_id node_id;
    uint32_t timeout_ms;
    const struct mcfs_session_ops *ops; /* NULL: no session */
    void *ops_arg;
    _Atomic uint64_t calls;
    atomic_uint lease_ms, nodes_seen;

    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t changed;
    uint64_t session;       /* 0 while there is none */
    struct mcfs_error last; /* why there is none */
    bool stopping;
    bool again;              /* the node has another inventory: a new session is to report it */
    struct mcfs_cancel wake; /* ends the session thread's waits */
    pthread_t thread;
    bool started;
};

/*
 * Calls a method whose params start with the session when `with_session`: `rest` holds the encoded
 * params behind it, `count` how many they are.  A session that the master has forgotten is made
 * anew and the call repeated.
 */
int master_call(struct mcfs_master *m, const char *method, bool with_session, uint32_t count,
                const struct mcfs_buf *rest, struct mcfs_rpc_reply *reply,
                const struct mcfs_cancel *cancel, struct mcfs_error *err);

/* RPC_FAIL: the answer has a wrong form; -1. */
int master_bad_answer(const char *method, struct mcfs_error *err);

/* Copies as much of a text as fits, and ends it with NUL. */
void master_copy_text(char *to, size_t cap, struct mcfs_slice from);

/* mode, uid, gid and mtime, as they stand in results. */
bool master_read_attr(struct mp_reader *p, struct mcfs_attr *attr);

/* An object as the method table describes it. */
bool master_read_object(struct mp_reader *p, struct mcfs_master_object *o);

int session_start(struct mcfs_master *m, struct mcfs_error *err);
void session_stop(struct mcfs_master *m);

/* The session's number, waiting for it until deadline_ms; 0 with err when it does not come. */
uint64_t session_wait(struct mcfs_master *m, int64_t deadline_ms, const struct mcfs_cancel *cancel,
                      struct mcfs_error *err);

/* The master does not know this session: make a new one. */
void session_invalid(struct mcfs_master *m, uint64_t session);

#endif
