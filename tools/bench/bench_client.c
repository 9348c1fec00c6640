/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/bench/bench_client.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/id.h"

#include <inttypes.h>

#define TIMEOUT_MS 60000
#define PING_MS 2000
#define CAPACITY_BYTES (UINT64_C(1) << 60)
#define OBJECT_BYTES (4u << 20)

struct bench_client {
    int fd;
    uint64_t session;
    uint32_t msgid;
    int64_t pinged_ms;
    struct mcfs_rpc_stream stream;
    struct mcfs_buf out, params;
};

static struct mcfs_slice tenant(void)
{
    return mcfs_slice_str(MCFS_DEFAULT_TENANT);
}

/* As connectors name blocks: a long common prefix, then a hash. */
static struct mcfs_slice key_of(uint64_t i, char key[128])
{
    int n = snprintf(
        key, 128,
        "meta-llama_Llama-3.1-8B@tp_rank:0@%016" PRIx64 "%016" PRIx64 "%016" PRIx64 "%08" PRIx64,
        (uint64_t)(i * 0x9e3779b97f4a7c15ULL), (uint64_t)(i * 0xc2b2ae3d27d4eb4fULL), ~i, i);
    return mcfs_slice(key, (size_t)n);
}

/* Begins a request's params with the session. */
static struct mcfs_buf *begin(struct bench_client *c, uint32_t params)
{
    mcfs_buf_reset(&c->params);
    mp_put_array(&c->params, params);
    mp_put_uint(&c->params, c->session);
    return &c->params;
}

static void add_request(struct bench_client *c, const char *method)
{
    mcfs_rpc_put_request(&c->out, c->msgid++, method, &c->params);
}

static int send_requests(struct bench_client *c, struct mcfs_error *err)
{
    int rc = mcfs_rpc_send(c->fd, c->out.data, c->out.len, mcfs_mono_ms() + TIMEOUT_MS, NULL, err);
    mcfs_buf_reset(&c->out);
    return rc;
}

/* The next answer's result; what the master notifies of meanwhile is nothing to a client that
 * caches and stores nothing. */
static int next_answer(struct bench_client *c, struct mp_reader *result, struct mcfs_error *err)
{
    struct mcfs_rpc_message m = {.kind = 2};
    while (m.kind != 1) {
        int rc = mcfs_rpc_receive(c->fd, &c->stream, &m, mcfs_mono_ms() + TIMEOUT_MS, NULL, err);
        if (rc < 0)
            return -1;
        if (rc == 0)
            return mcfs_fail(err, MCFS_RPC_FAIL, "the master does not answer");
    }
    if (m.error.code != MCFS_OK) {
        *err = m.error;
        return -1;
    }
    *result = mp_reader(m.body.data, m.body.len);
    return 0;
}

static int call(struct bench_client *c, const char *method, struct mp_reader *result,
                struct mcfs_error *err)
{
    add_request(c, method);
    return send_requests(c, err) || next_answer(c, result, err) ? -1 : 0;
}

/* Keeps the session alive. */
static int ping_when_due(struct bench_client *c, struct mcfs_error *err)
{
    struct mp_reader r;
    int64_t now_ms = mcfs_mono_ms();
    if (now_ms - c->pinged_ms < PING_MS)
        return 0;
    c->pinged_ms = now_ms;
    begin(c, 4);
    mp_put_uint(&c->params, CAPACITY_BYTES);
    mp_put_uint(&c->params, 0);
    mp_put_uint(&c->params, 0);
    return call(c, "Ping", &r, err);
}

static int do_register(struct bench_client *c, uint32_t number, struct mcfs_error *err)
{
    char id[MCFS_ID_TEXT_MAX], name[32];
    struct mp_reader r;
    mcfs_id_format(mcfs_id_random(), id);
    snprintf(name, sizeof(name), "bench-%" PRIu32, number);
    mp_put_array(&c->params, 5);
    mp_put_cstr(&c->params, id);
    mp_put_cstr(&c->params, name);
    mp_put_cstr(&c->params, "unix:/nowhere");
    mp_put_uint(&c->params, CAPACITY_BYTES);
    mp_put_uint(&c->params, 0);
    if (call(c, "Register", &r, err))
        return -1;
    if (!mp_read_array_of(&r, 3) || !mp_read_uint(&r, &c->session))
        return mcfs_fail(err, MCFS_RPC_FAIL, "Register was answered with something else");
    begin(c, 1);
    return call(c, "InventoryEnd", &r, err);
}

struct bench_client *bench_client_open(const char *address, uint32_t number, struct mcfs_error *err)
{
    struct bench_client *c = calloc(1, sizeof(*c));
    if (!c) {
        mcfs_fail(err, MCFS_INTERNAL_ERROR, "out of memory");
        return NULL;
    }
    c->fd = mcfs_rpc_connect(address, NULL, mcfs_mono_ms() + TIMEOUT_MS, NULL, err);
    if (c->fd >= 0 && do_register(c, number, err) == 0)
        return c;
    bench_client_close(c);
    return NULL;
}

void bench_client_close(struct bench_client *c)
{
    if (!c)
        return;
    if (c->fd >= 0)
        close(c->fd);
    mcfs_rpc_stream_free(&c->stream);
    mcfs_buf_free(&c->out);
    mcfs_buf_free(&c->params);
    free(c);
}

static void put_end(struct bench_client *c, struct mcfs_slice key, uint64_t version)
{
    struct mcfs_buf *b = begin(c, 13);
    mp_put_str(b, tenant());
    mp_put_str(b, key);
    mp_put_uint(b, version);
    mp_put_uint(b, OBJECT_BYTES);
    mp_put_uint(b, 0644);
    mp_put_uint(b, 0);
    mp_put_uint(b, 0);
    mp_put_int(b, 1);
    mp_put_uint(b, 0);
    mp_put_bool(b, false);
    mp_put_nil(b);
    mp_put_uint(b, 0);
    add_request(c, "PutEnd");
}

int bench_client_put(struct bench_client *c, uint64_t first, uint32_t n, struct mcfs_error *err)
{
    char key[128];
    uint64_t versions[BENCH_BATCH_MAX];
    struct mp_reader r;
    if (ping_when_due(c, err))
        return -1;
    for (uint32_t i = 0; i < n; i++) {
        struct mcfs_buf *b = begin(c, 5);
        mp_put_str(b, tenant());
        mp_put_str(b, key_of(first + i, key));
        mp_put_uint(b, OBJECT_BYTES);
        mp_put_bool(b, true);
        add_request(c, "PutStart");
    }
    if (send_requests(c, err))
        return -1;
    for (uint32_t i = 0; i < n; i++) {
        if (next_answer(c, &r, err))
            return -1;
        if (!mp_read_array_of(&r, 1) || !mp_read_uint(&r, &versions[i]))
            return mcfs_fail(err, MCFS_RPC_FAIL, "PutStart was answered with something else");
    }
    for (uint32_t i = 0; i < n; i++)
        put_end(c, key_of(first + i, key), versions[i]);
    if (send_requests(c, err))
        return -1;
    for (uint32_t i = 0; i < n; i++)
        if (next_answer(c, &r, err))
            return -1;
    return 0;
}

int bench_client_get(struct bench_client *c, const uint64_t *keys, uint32_t n,
                     struct mcfs_error *err)
{
    char key[128];
    struct mp_reader r;
    if (ping_when_due(c, err))
        return -1;
    struct mcfs_buf *b = begin(c, 3);
    mp_put_str(b, tenant());
    if (n > 1)
        mp_put_array(b, n);
    for (uint32_t i = 0; i < n; i++)
        mp_put_str(b, key_of(keys[i], key));
    if (call(c, n > 1 ? "BatchGetReplicaList" : "GetReplicaList", &r, err))
        return -1;
    if (n == 1)
        return 0;
    bool ok = mp_read_array_of(&r, n);
    for (uint32_t i = 0; ok && i < n; i++) {
        uint64_t code;
        ok = mp_read_array_of(&r, 2) && mp_read_uint(&r, &code) && code == 0 && mp_skip(&r, NULL);
    }
    return ok ? 0 : mcfs_fail(err, MCFS_OBJECT_NOT_FOUND, "a key that was put is not there");
}
