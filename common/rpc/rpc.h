/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_COMMON_RPC_H
#define MCFS_COMMON_RPC_H

/*
 * MessagePack-RPC (https://github.com/msgpack-rpc/msgpack-rpc/blob/master/spec.md) over TCP and
 * Unix stream sockets: requests [0, msgid, method, params], responses [1, msgid, error, result],
 * notifications [2, method, params].  params is an array.  error is nil, or [code, errno, text]
 * with Mooncake's error number.
 *
 * Addresses are "HOST:PORT" ("[v6]:PORT") or "unix:PATH".
 *
 * Where a server has keys (keys.h), a TCP connection begins with a handshake (auth.h); Unix sockets
 * are guarded by the file system.
 *
 * Server: one event loop per thread.  Frames are decoded where they were received, all requests
 * that are there are answered in order into one buffer, and the buffer goes out with one system
 * call.  A peer that does not read its answers is not read from either, so no queue grows without
 * bound.  A frame that is malformed or says that it will be longer than the limit ends the
 * connection; nothing is allocated on the word of a length.
 *
 * Client: blocking calls over a pool of connections, each used by one caller at a time, so that a
 * call costs one send and one receive in the caller's own thread.  Broken connections are replaced
 * and calls repeated until the deadline: every method of this project can be repeated (see struct
 * mcfs_rpc_reply).  So is a call that is answered UNAVAILABLE_IN_CURRENT_STATUS: a peer that is not
 * ready yet (a master that restores).
 */

#include "common/buf.h"
#include "common/mp.h"
#include "common/rpc/keys.h"
#include <mooncakefs/error.h>
#include <mooncakefs/object.h>

#define MCFS_RPC_FRAME_MAX (64u << 20) /* bytes of one message */

/* ---- server ---- */

struct mcfs_rpc_server;
struct mcfs_rpc_conn;

/* A run of file bytes that follows what is in a result's buffer, sent by the kernel straight from
 * the file.  `release` is called once, when the bytes are sent or the connection is gone. */
struct mcfs_rpc_file {
    int fd;
    uint64_t offset, length;
    void (*release)(void *arg);
    void *arg;
};

/* An answer that is not given in the handler. */
struct mcfs_rpc_later;

struct mcfs_rpc_request {
    struct mcfs_rpc_conn *conn;
    uint32_t msgid;
    bool notification; /* nobody waits for an answer */
    struct mcfs_slice method;
    struct mp_reader params; /* at the params array; bytes are valid during the call only */
    uint32_t params_count;   /* its length; the reader stands behind the array's head */
    struct mcfs_buf *result; /* append exactly one value; for a file: end with mp_put_bin_header */
    struct mcfs_rpc_file file;    /* fd -1 unless the handler sets it */
    struct mcfs_rpc_later *later; /* NULL unless mcfs_rpc_answer_later was called */
};

/* Answers one request: 0, or -1 with err set (the result is dropped).  Runs in a loop thread and
 * must not block there longer than the server's owner accepts. */
typedef int (*mcfs_rpc_handler_fn)(void *arg, struct mcfs_rpc_request *request,
                                   struct mcfs_error *err);

struct mcfs_rpc_server_config {
    mcfs_rpc_handler_fn handler;
    void (*disconnected)(void *arg, struct mcfs_rpc_conn *conn); /* may be NULL */
    void *arg;
    uint32_t threads;                 /* event loops; at least 1 */
    uint32_t connections_max;         /* 0: 60,000 */
    uint32_t frame_max;               /* bytes; 0: MCFS_RPC_FRAME_MAX */
    const struct mcfs_rpc_keys *keys; /* TCP callers must prove one; NULL: none.  Outlives the
                                         server. */
    uint32_t unix_send_bytes; /* buffer of a Unix socket, which does not grow as TCP's does; 0: as
                                 it is */
};

struct mcfs_rpc_server *mcfs_rpc_server_new(const struct mcfs_rpc_server_config *config,
                                            struct mcfs_error *err);

/* Listens on an address; may be called several times before start.  A Unix socket that is there but
 * has no listener is replaced.  *port gets the TCP port that was bound (for port 0); may be NULL.
 */
int mcfs_rpc_server_listen(struct mcfs_rpc_server *s, const char *address, uint16_t *port,
                           struct mcfs_error *err);

int mcfs_rpc_server_start(struct mcfs_rpc_server *s, struct mcfs_error *err);

/* Ends the loops, closes everything, removes Unix sockets, frees. */
void mcfs_rpc_server_stop(struct mcfs_rpc_server *s);

/* Closes what a forked child inherited, without touching the parent's connections or socket files.
 */
void mcfs_rpc_server_forget_in_child(struct mcfs_rpc_server *s);

/* Connections open now, requests answered so far. */
void mcfs_rpc_server_counts(struct mcfs_rpc_server *s, uint64_t *connections, uint64_t *requests);

/* Keeps a connection's struct alive beyond the request; balanced by unref. */
struct mcfs_rpc_conn *mcfs_rpc_conn_ref(struct mcfs_rpc_conn *c);
void mcfs_rpc_conn_unref(struct mcfs_rpc_conn *c);

/* Sends [2, method, params] from any thread; params is one encoded array.  Returns -1 when the
 * connection is gone or its peer does not read. */
int mcfs_rpc_conn_notify(struct mcfs_rpc_conn *c, const char *method,
                         const struct mcfs_buf *params);

/* The handler returns 0 without a result, and mcfs_rpc_later_send gives the answer; requests behind
 * this one are answered before it.  NULL for a notification, or without memory. */
struct mcfs_rpc_later *mcfs_rpc_answer_later(struct mcfs_rpc_request *r);

/* Sends the answer from any thread: `result`, one encoded value, or what err says when it is NULL;
 * frees `later`.  Returns -1 when nobody is there to hear it. */
int mcfs_rpc_later_send(struct mcfs_rpc_later *later, const struct mcfs_buf *result,
                        const struct mcfs_error *err);

/* Frees it without an answer, as when the server has stopped. */
void mcfs_rpc_later_free(struct mcfs_rpc_later *later);

/* Whether the caller has left. */
bool mcfs_rpc_later_is_gone(const struct mcfs_rpc_later *later);

/* The key that the caller has proven, for use in handlers; NULL on a connection that needs none. */
const struct mcfs_rpc_key *mcfs_rpc_conn_key(const struct mcfs_rpc_conn *c);

/* Owner's mark on a connection (0 at first); for use in loop threads and `disconnected`. */
void mcfs_rpc_conn_set_tag(struct mcfs_rpc_conn *c, uint64_t tag);
uint64_t mcfs_rpc_conn_tag(const struct mcfs_rpc_conn *c);

/* ---- one client connection (for sessions that also hear notifications) ---- */

/* Something that whoever waits keeps an eye on: when fd becomes readable, `ready` is called, once
 * or more often, in the waiting thread.  Such a wait polls for a moment before it sleeps. */
struct mcfs_watch {
    int fd;
    void (*ready)(void);
};

/* Ends waits: poll()able, set once. */
struct mcfs_cancel {
    int fd;                         /* eventfd, or -1 while nobody waits */
    const struct mcfs_watch *watch; /* or NULL */
};
#define MCFS_CANCEL_INIT                                                                           \
    {                                                                                              \
        -1, NULL                                                                                   \
    }
int mcfs_cancel_init(struct mcfs_cancel *c);
void mcfs_cancel_set(struct mcfs_cancel *c);
void mcfs_cancel_free(struct mcfs_cancel *c);

/* Connects within deadline_ms (mcfs_mono_ms() time), and over TCP proves the first of the keys
 * (NULL: none); returns a blocking descriptor or -1.  ILLEGAL_CLIENT: the two sides' keys differ.
 */
int mcfs_rpc_connect(const char *address, const struct mcfs_rpc_keys *keys, int64_t deadline_ms,
                     const struct mcfs_cancel *cancel, struct mcfs_error *err);

/* Sends one whole buffer. */
int mcfs_rpc_send(int fd, const void *data, size_t len, int64_t deadline_ms,
                  const struct mcfs_cancel *cancel, struct mcfs_error *err);

/* A message as received; the slices point into the receiver's buffer. */
struct mcfs_rpc_message {
    int kind;                 /* 0 request, 1 response, 2 notification */
    uint32_t msgid;           /* kinds 0 and 1 */
    struct mcfs_slice method; /* kinds 0 and 2 */
    struct mcfs_slice body;   /* params or result: one encoded value */
    struct mcfs_error error;  /* kind 1: code MCFS_OK when there is none */
};

/* Bytes received and not yet taken. */
struct mcfs_rpc_stream {
    struct mcfs_buf in;
    size_t taken; /* length of the message that was handed out last */
    struct mp_scan scan;
};

/* Waits for one message.  Returns 1, 0 at the deadline, -1 on error (the connection is useless
 * then; errno EINTR in err when cancelled). */
int mcfs_rpc_receive(int fd, struct mcfs_rpc_stream *stream, struct mcfs_rpc_message *message,
                     int64_t deadline_ms, const struct mcfs_cancel *cancel, struct mcfs_error *err);

void mcfs_rpc_stream_free(struct mcfs_rpc_stream *stream);

/* Takes a frame apart whose length mp_scan has told; shared by server and client.  Returns 0 or -1.
 */
int mcfs_rpc_parse(const void *frame, size_t len, struct mcfs_rpc_message *message);

/* Appends a whole request. */
void mcfs_rpc_put_request(struct mcfs_buf *b, uint32_t msgid, const char *method,
                          const struct mcfs_buf *params);

/* ---- client pool ---- */

struct mcfs_rpc_client;

struct mcfs_rpc_reply {
    struct mcfs_rpc_stream stream; /* owns the bytes */
    struct mp_reader result;       /* at the result value */
    bool repeated; /* the request was sent more than once and may have been carried out twice */
};
#define MCFS_RPC_REPLY_INIT                                                                        \
    {                                                                                              \
        .stream = { MCFS_BUF_INIT, 0, {0, 0, false} }                                              \
    }
void mcfs_rpc_reply_free(struct mcfs_rpc_reply *reply);
#define _cleanup_reply_ __attribute__((cleanup(mcfs_rpc_reply_free)))

/* A pool of connections to one address; connects on first use.  timeout_ms bounds each call,
 * retries included.  keys (or NULL) outlive the pool. */
struct mcfs_rpc_client *mcfs_rpc_client_new(const char *address, const struct mcfs_rpc_keys *keys,
                                            uint32_t timeout_ms, struct mcfs_error *err);
void mcfs_rpc_client_free(struct mcfs_rpc_client *c);
const char *mcfs_rpc_client_address(const struct mcfs_rpc_client *c);

/* Calls a method with an encoded params array and waits for its answer.  Errors: what the server
 * said; ILLEGAL_CLIENT when the two sides' keys differ; RPC_FAIL (EIO) when the peer could not be
 * reached or asked within the timeout; EINTR when cancelled (cancel may be NULL).  Any thread. */
int mcfs_rpc_call(struct mcfs_rpc_client *c, const char *method, const struct mcfs_buf *params,
                  struct mcfs_rpc_reply *reply, const struct mcfs_cancel *cancel,
                  struct mcfs_error *err);

/* An answer that is one binary value, taken off the connection piece by piece while it arrives: its
 * bytes lie nowhere in between, and what is not taken yet keeps the peer from sending more than the
 * socket holds. */
struct mcfs_rpc_incoming {
    struct mcfs_rpc_client *client;
    int fd;        /* the connection, this call's alone; -1: there is none */
    uint64_t left; /* bytes still to be taken */
};
#define MCFS_RPC_INCOMING_INIT                                                                     \
    {                                                                                              \
        .fd = -1                                                                                   \
    }

/* As mcfs_rpc_call up to the answer's first byte; TRANSFER_FAIL when the answer is no binary value.
 */
int mcfs_rpc_incoming_begin(struct mcfs_rpc_client *c, const char *method,
                            const struct mcfs_buf *params, struct mcfs_rpc_incoming *in,
                            const struct mcfs_cancel *cancel, struct mcfs_error *err);

/* Takes len bytes, or what is left when that is less, within the client's timeout.  The count, or
 * -1: the connection is closed then, and nothing left. */
int64_t mcfs_rpc_incoming_read(struct mcfs_rpc_incoming *in, void *buf, size_t len,
                               const struct mcfs_cancel *cancel, struct mcfs_error *err);

/* Gives the connection back if nothing is left, else closes it. */
void mcfs_rpc_incoming_end(struct mcfs_rpc_incoming *in);

/* Drops idle connections, so that a forked child or a changed peer starts anew. */
void mcfs_rpc_client_reset(struct mcfs_rpc_client *c);

/* Whether an address needs authentication: TCP on anything but loopback. */
bool mcfs_rpc_address_is_local(const char *address);

#endif
