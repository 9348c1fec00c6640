/* SPDX-License-Identifier: Apache-2.0 */
#include "common/rpc/auth.h"

#include "common/cleanup.h"
#include "common/clock.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

static const char label[] = "mooncakefs-rpc-1";

static int fresh(uint8_t nonce[AUTH_NONCE], struct mcfs_error *err)
{
    return getrandom(nonce, AUTH_NONCE, 0) == AUTH_NONCE
               ? 0
               : mcfs_fail_errno(err, errno, "random bytes");
}

static int make_proof(const struct mcfs_rpc_key *key, char side, const uint8_t *callers,
                      const uint8_t *servers, uint8_t proof[AUTH_PROOF], struct mcfs_error *err)
{
    _cleanup_buf_ struct mcfs_buf b = MCFS_BUF_INIT;
    const char *name = mcfs_rpc_key_name(key);
    struct mcfs_slice secret = mcfs_rpc_key_secret(key);
    uint8_t len = (uint8_t)strlen(name);
    unsigned out = 0;
    mcfs_buf_append(&b, label, sizeof(label) - 1);
    mcfs_buf_append(&b, &side, 1);
    mcfs_buf_append(&b, &len, 1);
    mcfs_buf_append(&b, name, len);
    mcfs_buf_append(&b, callers, AUTH_NONCE);
    mcfs_buf_append(&b, servers, AUTH_NONCE);
    if (b.failed || !HMAC(EVP_sha256(), secret.data, (int)secret.len, b.data, b.len, proof, &out) ||
        out != AUTH_PROOF)
        return mcfs_fail(err, MCFS_INTERNAL_ERROR, "HMAC-SHA256 failed");
    return 0;
}

static bool is_proof(struct mcfs_slice theirs, const uint8_t proof[AUTH_PROOF])
{
    return theirs.len == AUTH_PROOF && CRYPTO_memcmp(theirs.data, proof, AUTH_PROOF) == 0;
}

/* ---- server ---- */

static int hello(struct rpc_auth *a, const struct mcfs_rpc_keys *keys, struct mp_reader *params,
                 uint32_t count, struct mcfs_buf *result, struct mcfs_error *err)
{
    struct mcfs_slice name, nonce;
    uint8_t proof[AUTH_PROOF];
    if (a->key || count != 2 || !mp_read_raw(params, &name) || !mp_read_raw(params, &nonce) ||
        nonce.len != AUTH_NONCE)
        return mcfs_fail(err, MCFS_ILLEGAL_CLIENT, AUTH_HELLO ": not as the handshake has it");
    const struct mcfs_rpc_key *key = mcfs_rpc_keys_find(keys, name);
    if (!key)
        return mcfs_fail(err, MCFS_ILLEGAL_CLIENT, "no key '%.*s' is known here",
                         (int)MCFS_MIN(name.len, 64), name.data);
    memcpy(a->theirs, nonce.data, AUTH_NONCE);
    if (fresh(a->ours, err) || make_proof(key, 'S', a->theirs, a->ours, proof, err))
        return -1;
    a->key = key;
    mp_put_array(result, 2);
    mp_put_bin(result, a->ours, AUTH_NONCE);
    mp_put_bin(result, proof, AUTH_PROOF);
    return 0;
}

static int prove(struct rpc_auth *a, struct mp_reader *params, uint32_t count,
                 struct mcfs_buf *result, struct mcfs_error *err)
{
    struct mcfs_slice theirs;
    uint8_t proof[AUTH_PROOF];
    if (!a->key || count != 1 || !mp_read_raw(params, &theirs))
        return mcfs_fail(err, MCFS_ILLEGAL_CLIENT, AUTH_PROVE ": not as the handshake has it");
    if (make_proof(a->key, 'C', a->theirs, a->ours, proof, err))
        return -1;
    if (!is_proof(theirs, proof))
        return mcfs_fail(err, MCFS_ILLEGAL_CLIENT, "the proof of key '%s' is wrong",
                         mcfs_rpc_key_name(a->key));
    a->done = true;
    mp_put_nil(result);
    return 0;
}

int rpc_auth_step(struct rpc_auth *a, const struct mcfs_rpc_keys *keys, struct mcfs_slice method,
                  struct mp_reader *params, uint32_t count, struct mcfs_buf *result,
                  struct mcfs_error *err)
{
    if (mcfs_slice_eq(method, MCFS_SLICE_LITERAL(AUTH_HELLO)))
        return hello(a, keys, params, count, result, err);
    if (mcfs_slice_eq(method, MCFS_SLICE_LITERAL(AUTH_PROVE)))
        return prove(a, params, count, result, err);
    return mcfs_fail(err, MCFS_ILLEGAL_CLIENT,
                     "this server asks for a key: give the caller an auth_key_file");
}

/* ---- caller ---- */

static int ask(int fd, const char *address, uint32_t msgid, const char *method,
               const struct mcfs_buf *params, struct mcfs_rpc_stream *stream, struct mp_reader *out,
               int64_t deadline_ms, const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    _cleanup_buf_ struct mcfs_buf frame = MCFS_BUF_INIT;
    struct mcfs_rpc_message m;
    mcfs_rpc_put_request(&frame, msgid, method, params);
    if (frame.failed)
        return mcfs_fail_errno(err, ENOMEM, "%s", method);
    if (mcfs_rpc_send(fd, frame.data, frame.len, deadline_ms, cancel, err))
        return -1;
    int rc = mcfs_rpc_receive(fd, stream, &m, deadline_ms, cancel, err);
    if (rc < 0)
        return -1;
    if (rc == 0)
        return mcfs_fail(err, MCFS_RPC_TIMEOUT, "%s: the handshake was not answered", address);
    if (m.kind != 1 || m.msgid != msgid)
        return mcfs_fail(err, MCFS_RPC_FAIL, "%s: something else than a handshake", address);
    if (m.error.code != MCFS_OK) {
        if (err)
            *err = m.error;
        return mcfs_error_prefix(err, "%s", address);
    }
    *out = mp_reader(m.body.data, m.body.len);
    return 0;
}

static int exchange(int fd, const char *address, const struct mcfs_rpc_key *key,
                    struct mcfs_rpc_stream *stream, int64_t deadline_ms,
                    const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    _cleanup_buf_ struct mcfs_buf params = MCFS_BUF_INIT;
    uint8_t ours[AUTH_NONCE], proof[AUTH_PROOF];
    struct mcfs_slice nonce, theirs;
    struct mp_reader answer;
    if (fresh(ours, err))
        return -1;
    mp_put_array(&params, 2);
    mp_put_cstr(&params, mcfs_rpc_key_name(key));
    mp_put_bin(&params, ours, AUTH_NONCE);
    if (ask(fd, address, 0, AUTH_HELLO, &params, stream, &answer, deadline_ms, cancel, err))
        return -1;
    if (!mp_read_array_of(&answer, 2) || !mp_read_raw(&answer, &nonce) ||
        !mp_read_raw(&answer, &theirs) || nonce.len != AUTH_NONCE)
        return mcfs_fail(err, MCFS_RPC_FAIL, "%s: " AUTH_HELLO " was answered with something else",
                         address);
    const uint8_t *servers = (const uint8_t *)nonce.data;
    if (make_proof(key, 'S', ours, servers, proof, err))
        return -1;
    if (!is_proof(theirs, proof))
        return mcfs_fail(err, MCFS_ILLEGAL_CLIENT,
                         "%s does not know this key '%s': the key files differ", address,
                         mcfs_rpc_key_name(key));
    if (make_proof(key, 'C', ours, servers, proof, err))
        return -1;
    mcfs_buf_reset(&params);
    mp_put_array(&params, 1);
    mp_put_bin(&params, proof, AUTH_PROOF);
    return ask(fd, address, 1, AUTH_PROVE, &params, stream, &answer, deadline_ms, cancel, err);
}

int rpc_auth_prove(int fd, const char *address, const struct mcfs_rpc_keys *keys,
                   int64_t deadline_ms, const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    struct mcfs_rpc_stream stream = {0};
    int rc = exchange(fd, address, mcfs_rpc_keys_first(keys), &stream, deadline_ms, cancel, err);
    mcfs_rpc_stream_free(&stream);
    return rc;
}
