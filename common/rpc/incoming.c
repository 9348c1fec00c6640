/* SPDX-License-Identifier: Apache-2.0 */
/* Answers that are taken off the connection as they arrive. */
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/rpc/client_private.h"

#include <poll.h>
#include <sys/socket.h>

#define HEAD_MAX 32     /* more than what comes before a binary value's bytes */
#define SPLIT_HEAD_MS 1 /* pause for the rest of it */

size_t rpc_incoming_head(const uint8_t *p, size_t len, uint32_t msgid, uint64_t *value, bool *other)
{
    struct mp_reader r = mp_reader(p, len);
    uint64_t kind, id;
    uint32_t n;
    *other = false;
    if (!mp_read_array(&r, &n) || !mp_read_uint(&r, &kind) || !mp_read_uint(&r, &id))
        return 0;
    *other = n != 4 || kind != 1 || id != msgid || (r.p < r.end && *r.p != 0xc0);
    if (*other || !mp_read_nil(&r) || r.p == r.end)
        return 0;
    size_t width = *r.p == 0xc4 ? 1 : *r.p == 0xc5 ? 2 : *r.p == 0xc6 ? 4 : 0;
    *other = width == 0;
    if (*other || (size_t)(r.end - r.p) < 1 + width)
        return 0;
    *value = 0;
    for (size_t i = 1; i <= width; i++)
        *value = *value << 8 | r.p[i];
    return (size_t)(r.p - p) + 1 + width;
}

/* An error, most likely. */
static int hear_other(int fd, uint32_t msgid, int64_t deadline_ms, const struct mcfs_cancel *cancel,
                      struct mcfs_error *err)
{
    _cleanup_reply_ struct mcfs_rpc_reply reply = MCFS_RPC_REPLY_INIT;
    int rc = rpc_hear_reply(&reply, fd, msgid, deadline_ms, cancel, err);
    if (rc == 1 && err->code == MCFS_OK)
        mcfs_fail(err, MCFS_TRANSFER_FAIL, "the answer is no binary value");
    return rc;
}

/* The head is looked at in the socket first, so that what follows it is not taken along. */
static int hear_head(void *arg, int fd, uint32_t msgid, int64_t deadline_ms,
                     const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    uint64_t *left = arg;
    uint8_t head[HEAD_MAX];
    for (;;) {
        bool other;
        int rc = rpc_wait_for(fd, POLLIN, deadline_ms, cancel, err);
        if (rc <= 0)
            return rc;
        ssize_t n = recv(fd, head, sizeof(head), MSG_PEEK | MSG_DONTWAIT);
        if (n == 0)
            return mcfs_fail_errno(err, ECONNRESET, "peer closed the connection");
        if (n < 0 && errno != EAGAIN && errno != EINTR)
            return mcfs_fail_errno(err, errno, "receive");
        if (n < 0)
            continue;
        size_t len = rpc_incoming_head(head, (size_t)n, msgid, left, &other);
        if (other || (len == 0 && n == HEAD_MAX))
            return hear_other(fd, msgid, deadline_ms, cancel, err);
        if (len == 0) {
            poll(NULL, 0, SPLIT_HEAD_MS); /* readable all the while */
            if (mcfs_mono_ms() >= deadline_ms)
                return 0;
            continue;
        }
        if (recv(fd, head, len, MSG_DONTWAIT) != (ssize_t)len)
            return mcfs_fail_errno(err, EIO, "receive");
        *err = (struct mcfs_error)MCFS_ERROR_INIT;
        return 1;
    }
}

int mcfs_rpc_incoming_begin(struct mcfs_rpc_client *c, const char *method,
                            const struct mcfs_buf *params, struct mcfs_rpc_incoming *in,
                            const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    const struct rpc_hearing hearing = {hear_head, &in->left};
    bool repeated;
    in->client = c;
    in->fd = -1;
    if (rpc_client_call(c, method, params, &hearing, &in->fd, &repeated, cancel, err) == 0)
        return 0;
    in->left = 0;
    return -1;
}

static int lost(struct mcfs_rpc_incoming *in)
{
    close(in->fd);
    in->fd = -1;
    in->left = 0;
    return -1;
}

int64_t mcfs_rpc_incoming_read(struct mcfs_rpc_incoming *in, void *buf, size_t len,
                               const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    int64_t deadline = mcfs_mono_ms() + in->client->timeout_ms;
    size_t done = 0, all = (size_t)MCFS_MIN(len, in->left);
    while (done < all) {
        ssize_t n = recv(in->fd, (uint8_t *)buf + done, all - done, MSG_DONTWAIT);
        if (n > 0) {
            done += (size_t)n;
            in->left -= (uint64_t)n;
            continue;
        }
        if (n < 0 && errno == EINTR)
            continue;
        if (n == 0 || errno != EAGAIN) {
            mcfs_fail_errno(err, n == 0 ? ECONNRESET : errno, "%s: receive", in->client->address);
            return lost(in);
        }
        int rc = rpc_wait_for(in->fd, POLLIN, deadline, cancel, err);
        if (rc == 0)
            mcfs_fail_errno(err, ETIMEDOUT, "%s: receive", in->client->address);
        if (rc <= 0)
            return lost(in);
    }
    return (int64_t)done;
}

void mcfs_rpc_incoming_end(struct mcfs_rpc_incoming *in)
{
    if (in->fd < 0)
        return;
    if (in->left)
        lost(in);
    else
        rpc_client_give_back(in->client, in->fd);
    in->fd = -1;
}
