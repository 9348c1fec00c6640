/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests to a master, one behind the other: a byte that names the method by its place in the
 * table and the caller by its upper bit, then the params, one MessagePack value.  Whatever they
 * are, each is answered, and the answer is one value or an error that has its number and text.  The
 * corpus has a request of every method; a method without one is a failure.
 */
#include "common/cleanup.h"
#include "common/file.h"
#include "common/log.h"
#include "common/rpc/conn.h"
#include "master/master.h"
#include <mooncakefs/rpc_methods.h>

#include <ftw.h>
#include <stdio.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const methods[] = {
#define X(id, name, params, result, help) name,
    MCFS_MASTER_METHODS(X)
#undef X
};

#define METHODS MCFS_ARRAY_SIZE(methods)
#define REQUESTS_MAX 64 /* of one input */

static struct master m;
static struct mcfs_object_store *store;
static struct mcfs_rpc_conn callers[2]; /* with no key; with one that is bound to a tenant */
static char cluster[] = "c", strategy[] = "random";
static char dir[] = "/tmp/mcfs-fuzz-XXXXXX";
static bool done[METHODS]; /* without an error, at least once */

static uint32_t no_nodes(void *arg, struct snap_node *out, uint32_t max)
{
    (void)arg, (void)out, (void)max;
    return 0;
}

static void in_child(void *arg)
{
    (void)arg;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st, (void)type, (void)at;
    return remove(path);
}

static void at_end(void)
{
    checkpointer_stop(m.checkpointer);
    checkpointer_free(m.checkpointer);
    restoring_free(m.restoring);
    store->ops->close(store);
    nftw(dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
#ifndef MCFS_FUZZING
    for (size_t i = 0; i < METHODS; i++)
        if (!done[i]) {
            fprintf(stderr, "no request in the corpus makes %s succeed\n", methods[i]);
            _exit(1);
        }
#endif
}

/* A snapshot of a name that the corpus knows; its content is nobody's business here. */
static void make_snapshot(void)
{
    char path[256];
    snprintf(path, sizeof(path), "%s/mooncake_master_snapshot/c/20260101_000000_000", dir);
    if (mcfs_make_dirs(path, 0755, NULL))
        abort();
    strcat(path, "/manifest");
    if (mcfs_write_file(path, "x", 1, 0644, 0, NULL))
        abort();
    strcpy(strrchr(path, '/'), "/descriptor.txt"); /* it is published */
    if (mcfs_write_file(path, "0|0|1", 5, 0644, 0, NULL))
        abort();
}

static void set_up(void)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    char key[] = "bound team 000102030405060708090a0b0c0d0e0f";
    struct directory_config config = directory_alone("n:1");
    struct mcfs_rpc_server_config server = {.handler = service_handle, .arg = &m, .threads = 1};
    config.lease_ms = 100;
    config.soft_pin_ms = 1000;
    mcfs_log_init("fuzz", MCFS_LOG_ERROR);
    m.epoch = 1;
    m.flags.cluster_id = cluster;
    m.flags.allocation_strategy = strategy;
    m.flags.client_ttl_ms = 10000;
    m.flags.default_kv_lease_ttl_ms = 100;
    m.keys = mcfs_rpc_keys_parse(key, sizeof(key) - 1, "key", &err);
    m.nodes = nodes_new(NULL, 10000, &err);
    m.directory = directory_new(&config, &err);
    m.server = mcfs_rpc_server_new(&server, &err);
    store = mkdtemp(dir) ? snap_store_open(dir, &err) : NULL;
    struct checkpoint_config checkpoints = {.directory = m.directory,
                                            .store = store,
                                            .cluster = m.flags.cluster_id,
                                            .child_timeout_ms = 60000,
                                            .retention = 1000,
                                            .nodes = no_nodes,
                                            .in_child = in_child,
                                            .arg = &m};
    m.checkpointer = store && m.directory ? checkpointer_start(&checkpoints, &err) : NULL;
    m.restoring = restoring_new(&err);
    if (!m.keys || !m.nodes || !m.server || !m.checkpointer || !m.restoring) {
        fprintf(stderr, "%s\n", err.msg);
        abort();
    }
    restoring_end(m.restoring);
    make_snapshot();
    for (int i = 0; i < 2; i++) {
        callers[i].fd = callers[i].epoll_fd = -1; /* what is sent there goes nowhere */
        atomic_init(&callers[i].refs, 1);
        pthread_mutex_init(&callers[i].out_lock, NULL);
    }
    callers[1].key = mcfs_rpc_keys_first(m.keys);
    atexit(at_end);
}

/* One request; 0, or -1 when the bytes hold no further one. */
static int ask(struct mp_reader *in, unsigned which, struct mcfs_buf *result)
{
    struct mcfs_slice params;
    struct mcfs_error err = MCFS_ERROR_INIT;
    unsigned method = which % 128 % METHODS; /* so that one method more leaves the corpus right */
    struct mcfs_rpc_request r = {.conn = &callers[which / 128 % 2],
                                 .method = mcfs_slice_str(methods[method]),
                                 .result = result,
                                 .file = {.fd = -1}};
    if (mp_peek(in) != MP_ARRAY || !mp_skip(in, &params))
        return -1;
    /* A checkpoint forks, which is no business of a fuzzer; one is enough to have files to read. */
    if (strcmp(methods[method], "SnapshotCreate") == 0 && done[method])
        return 0;
    r.params = mp_reader(params.data, params.len);
    mp_read_array(&r.params, &r.params_count);
    mcfs_buf_reset(result);
    if (service_handle(&m, &r, &err)) {
        if (err.code >= 0 || err.errnum <= 0 || !err.msg[0]) {
            fprintf(stderr, "%s fails with %d, '%s'\n", methods[method], err.code, err.msg);
            abort();
        }
        return 0;
    }
    struct mp_reader answer = mp_reader(result->data, result->len);
    if (result->failed || !mp_skip(&answer, NULL) || !mp_done(&answer)) {
        fprintf(stderr, "%s answers something that is not one value\n", methods[method]);
        abort();
    }
    done[method] = true;
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    _cleanup_buf_ struct mcfs_buf result = MCFS_BUF_INIT;
    if (!m.directory)
        set_up();
    struct mp_reader in = mp_reader(data, size);
    for (int i = 0; i < REQUESTS_MAX && in.p < in.end; i++) {
        unsigned which = *in.p++;
        if (ask(&in, which, &result))
            break;
    }
    directory_clear(m.directory);
    return 0;
}
