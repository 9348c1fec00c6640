/* SPDX-License-Identifier: Apache-2.0 */
#include "master/nodes.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/file.h"
#include "common/hash.h"
#include "common/id.h"
#include "common/log.h"
#include "common/table.h"

#include <fcntl.h>
#include <limits.h>

#define NODES_MAX 65535
#define KEY_NAME_SIZE 72

/* A node of an earlier master. */
struct known_node {
    struct mcfs_id id;
    char key[KEY_NAME_SIZE];
};

struct discard {
    uint64_t version;
    uint32_t tenant_len, key_len;
    char bytes[];
};

struct node {
    struct node_info info;
    int64_t heard_ms;
    struct mcfs_rpc_conn *conn; /* reference held */
    bool ready;
    char key[KEY_NAME_SIZE]; /* that it first came with; "-": none */
    struct mcfs_table discards;
};

struct nodes {
    pthread_rwlock_t lock;
    struct node *nodes[NODES_MAX];
    uint32_t max;
    uint32_t client_ttl_ms;
    char *file; /* the known nodes, a line each: id, name of the key; NULL: not remembered */
    struct known_node *awaited; /* known from before and not yet back */
    size_t awaited_count;
    bool remembered; /* `awaited` is all there is to wait for */
};

static uint64_t discard_hash(const void *e)
{
    return ((const struct discard *)e)->version * 0x9e3779b97f4a7c15ULL >> 16;
}

static bool discard_eq(const void *e, const void *key)
{
    return ((const struct discard *)e)->version == *(const uint64_t *)key;
}

static struct discard *find_discard(const struct node *node, uint64_t version)
{
    struct discard probe = {.version = version};
    return mcfs_table_find(&node->discards, discard_hash(&probe), discard_eq, &version);
}

static int load_known(struct nodes *n, const char *state_dir, struct mcfs_error *err)
{
    char *text;
    if (asprintf(&n->file, "%s/master_nodes", state_dir) < 0)
        return mcfs_fail_errno(err, ENOMEM, "%s", state_dir);
    struct mcfs_error read = MCFS_ERROR_INIT;
    n->remembered = true;
    if (mcfs_read_file_alloc(n->file, 16 << 20, &text, &read) < 0) {
        if (read.errnum == ENOENT)
            return 0;
        if (err)
            *err = read;
        return -1;
    }
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        struct known_node known = {0}, *more;
        char *space = strchr(line, ' ');
        if (space)
            *space++ = 0;
        snprintf(known.key, sizeof(known.key), "%s", space ? space : "-");
        /* A line that a crash cut short is a node that had not been answered yet. */
        if (mcfs_id_parse(mcfs_slice_str(line), &known.id) ||
            !(more = realloc(n->awaited, (n->awaited_count + 1) * sizeof(*more))))
            continue;
        n->awaited = more;
        n->awaited[n->awaited_count++] = known;
    }
    free(text);
    return 0;
}

struct nodes *nodes_new(const char *state_dir, uint32_t client_ttl_ms, struct mcfs_error *err)
{
    struct nodes *n = calloc(1, sizeof(*n));
    if (!n) {
        mcfs_fail_errno(err, ENOMEM, "nodes");
        return NULL;
    }
    pthread_rwlock_init(&n->lock, NULL);
    n->client_ttl_ms = client_ttl_ms;
    if (state_dir && load_known(n, state_dir, err)) {
        nodes_free(n);
        return NULL;
    }
    return n;
}

void nodes_free(struct nodes *n)
{
    if (!n)
        return;
    for (uint32_t i = 0; i <= n->max; i++) {
        struct node *node = n->nodes[i];
        struct discard *dis;
        if (!node)
            continue;
        for (size_t k = 0; (dis = mcfs_table_next(&node->discards, &k));)
            free(dis);
        mcfs_table_free(&node->discards);
        if (node->conn)
            mcfs_rpc_conn_unref(node->conn);
        free(node);
    }
    pthread_rwlock_destroy(&n->lock);
    free(n->file);
    free(n->awaited);
    free(n);
}

/* A node that was not known is written down before it is answered. */
static int remember(struct nodes *n, struct mcfs_id id, const char *key, struct mcfs_error *err)
{
    char line[MCFS_ID_TEXT_MAX + KEY_NAME_SIZE + 2];
    for (size_t i = 0; i < n->awaited_count; i++) {
        if (mcfs_id_eq(n->awaited[i].id, id)) {
            n->awaited[i] = n->awaited[--n->awaited_count];
            return 0;
        }
    }
    if (!n->file)
        return 0;
    _cleanup_fd_ int fd = open(n->file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    snprintf(line, sizeof(line), "%s %s\n", mcfs_id_format(id, (char[MCFS_ID_TEXT_MAX]){0}), key);
    if (fd < 0 || mcfs_write_full(fd, line, strlen(line)) || fdatasync(fd))
        return mcfs_fail_errno(err, errno, "%s", n->file);
    return 0;
}

/* The node of a number, made when it is new: one known only from a snapshot has no id yet. */
static struct node *make(struct nodes *n, uint32_t number)
{
    struct node *node = n->nodes[number];
    if (!node && (node = calloc(1, sizeof(*node)))) {
        node->discards = (struct mcfs_table)MCFS_TABLE_INIT(discard_hash);
        node->heard_ms = INT64_MIN / 2;
        n->nodes[number] = node;
        n->max = MCFS_MAX(n->max, number);
    }
    return node;
}

/* The key that a node first came with: as this master saw it, or an earlier one wrote it down;
 * NULL: it is new. */
static const char *first_key(const struct nodes *n, const struct node *node, struct mcfs_id id)
{
    if (node->key[0])
        return node->key;
    for (size_t i = 0; i < n->awaited_count; i++)
        if (mcfs_id_eq(n->awaited[i].id, id))
            return n->awaited[i].key;
    return NULL;
}

static int check_key(const struct nodes *n, const struct node *node, const struct node_info *info,
                     const struct mcfs_rpc_key *key, struct mcfs_error *err)
{
    const char *first = first_key(n, node, info->id);
    if (!first || !mcfs_rpc_key_is_bound(key) || strcmp(first, mcfs_rpc_key_name(key)) == 0)
        return 0;
    return mcfs_fail(err, MCFS_ILLEGAL_CLIENT,
                     "node %s came with another key than '%s', which is bound to tenants",
                     info->name, mcfs_rpc_key_name(key));
}

int nodes_register(struct nodes *n, uint32_t number, const struct node_info *info,
                   const struct mcfs_rpc_key *key, struct mcfs_rpc_conn *conn,
                   struct mcfs_error *err)
{
    if (number == 0 || number >= NODES_MAX)
        return mcfs_fail(err, MCFS_NO_AVAILABLE_HANDLE, "more nodes than this master can count");
    pthread_rwlock_wrlock(&n->lock);
    struct node *node = make(n, number);
    int rc = 0;
    if (!node)
        rc = mcfs_fail_errno(err, ENOMEM, "nodes");
    else
        rc = check_key(n, node, info, key, err);
    if (rc == 0 && !mcfs_id_eq(node->info.id, info->id)) {
        char name[KEY_NAME_SIZE];
        const char *first = first_key(n, node, info->id);
        snprintf(name, sizeof(name), "%s", first ? first : key ? mcfs_rpc_key_name(key) : "-");
        rc = remember(n, info->id, name, err);
        if (rc == 0)
            memcpy(node->key, name, sizeof(name));
    }
    if (rc == 0) {
        if (node->conn)
            mcfs_rpc_conn_unref(node->conn);
        node->info = *info;
        node->conn = mcfs_rpc_conn_ref(conn);
        node->ready = false;
        node->heard_ms = mcfs_mono_ms();
    }
    pthread_rwlock_unlock(&n->lock);
    return rc;
}

static struct node *get(struct nodes *n, uint32_t number)
{
    return number < NODES_MAX ? n->nodes[number] : NULL;
}

bool nodes_came_with(struct nodes *n, uint32_t number, const char *key)
{
    pthread_rwlock_rdlock(&n->lock);
    const struct node *node = get(n, number);
    bool same = node && strcmp(node->key, key) == 0;
    pthread_rwlock_unlock(&n->lock);
    return same;
}

void nodes_ready(struct nodes *n, uint32_t number)
{
    pthread_rwlock_wrlock(&n->lock);
    struct node *node = get(n, number);
    if (node)
        node->ready = true;
    pthread_rwlock_unlock(&n->lock);
}

bool nodes_ping(struct nodes *n, uint32_t number, uint64_t capacity, uint64_t used)
{
    pthread_rwlock_wrlock(&n->lock);
    struct node *node = get(n, number);
    bool known = node && node->conn;
    if (known) {
        node->heard_ms = mcfs_mono_ms();
        node->info.capacity_bytes = capacity;
        node->info.used_bytes = used;
    }
    pthread_rwlock_unlock(&n->lock);
    return known;
}

bool nodes_registered(struct nodes *n, uint32_t number)
{
    pthread_rwlock_rdlock(&n->lock);
    struct node *node = get(n, number);
    bool known = node && node->conn;
    pthread_rwlock_unlock(&n->lock);
    return known;
}

bool nodes_connected(struct nodes *n, uint32_t number)
{
    pthread_rwlock_rdlock(&n->lock);
    struct node *node = get(n, number);
    bool connected = node && node->conn && node->ready;
    pthread_rwlock_unlock(&n->lock);
    return connected;
}

static void disconnect(struct node *node, const char *why)
{
    mcfs_info("node %s (%s) is gone: %s", node->info.name, node->info.endpoint, why);
    mcfs_rpc_conn_unref(node->conn);
    node->conn = NULL;
    node->ready = false;
}

void nodes_disconnected(struct nodes *n, struct mcfs_rpc_conn *conn)
{
    uint64_t number = mcfs_rpc_conn_tag(conn);
    pthread_rwlock_wrlock(&n->lock);
    struct node *node = get(n, (uint32_t)number);
    if (node && node->conn == conn)
        disconnect(node, "its connection ended");
    pthread_rwlock_unlock(&n->lock);
}

uint32_t nodes_expire(struct nodes *n)
{
    uint32_t expired = 0;
    int64_t now = mcfs_mono_ms();
    pthread_rwlock_wrlock(&n->lock);
    for (uint32_t i = 1; i <= n->max; i++) {
        struct node *node = n->nodes[i];
        if (node && node->conn && now - node->heard_ms > n->client_ttl_ms) {
            disconnect(node, "it was silent for too long");
            expired++;
        }
    }
    pthread_rwlock_unlock(&n->lock);
    return expired;
}

bool nodes_all_back(struct nodes *n)
{
    pthread_rwlock_rdlock(&n->lock);
    bool back = n->remembered && n->awaited_count == 0;
    pthread_rwlock_unlock(&n->lock);
    return back;
}

bool nodes_heard_within(struct nodes *n, uint32_t number, int64_t ms)
{
    pthread_rwlock_rdlock(&n->lock);
    struct node *node = get(n, number);
    bool heard = node && (node->conn || mcfs_mono_ms() - node->heard_ms < ms);
    pthread_rwlock_unlock(&n->lock);
    return heard;
}

bool nodes_get(struct nodes *n, uint32_t number, struct node_info *out)
{
    pthread_rwlock_rdlock(&n->lock);
    struct node *node = get(n, number);
    if (node) {
        *out = node->info;
        out->connected = node->conn && node->ready;
        out->silent_ms = mcfs_mono_ms() - node->heard_ms;
    }
    pthread_rwlock_unlock(&n->lock);
    return node && (node->info.id.hi || node->info.id.lo);
}

uint32_t nodes_max(struct nodes *n)
{
    return __atomic_load_n(&n->max, __ATOMIC_RELAXED);
}

uint32_t nodes_count_connected(struct nodes *n)
{
    uint32_t count = 0;
    pthread_rwlock_rdlock(&n->lock);
    for (uint32_t i = 1; i <= n->max; i++)
        count += n->nodes[i] && n->nodes[i]->conn;
    pthread_rwlock_unlock(&n->lock);
    return count;
}

void nodes_notify(struct nodes *n, uint32_t number, const char *method,
                  const struct mcfs_buf *params)
{
    pthread_rwlock_rdlock(&n->lock);
    struct node *node = get(n, number);
    struct mcfs_rpc_conn *conn = node && node->conn ? mcfs_rpc_conn_ref(node->conn) : NULL;
    pthread_rwlock_unlock(&n->lock);
    if (conn) {
        mcfs_rpc_conn_notify(conn, method, params);
        mcfs_rpc_conn_unref(conn);
    }
}

static void put_discard(struct mcfs_buf *b, const struct discard *dis)
{
    mp_put_array(b, 3);
    mp_put_str(b, mcfs_slice(dis->bytes, dis->tenant_len));
    mp_put_str(b, mcfs_slice(dis->bytes + dis->tenant_len, dis->key_len));
    mp_put_uint(b, dis->version);
}

void nodes_discard(struct nodes *n, uint32_t number, struct mcfs_slice tenant,
                   struct mcfs_slice key, uint64_t version)
{
    struct discard *dis = malloc(sizeof(*dis) + tenant.len + key.len);
    if (!dis)
        return;
    *dis = (struct discard){version, (uint32_t)tenant.len, (uint32_t)key.len};
    memcpy(dis->bytes, tenant.data, tenant.len);
    memcpy(dis->bytes + tenant.len, key.data, key.len);
    _cleanup_buf_ struct mcfs_buf params = MCFS_BUF_INIT;
    mp_put_array(&params, 1);
    mp_put_array(&params, 1);
    put_discard(&params, dis);

    pthread_rwlock_wrlock(&n->lock);
    struct node *node = number && number < NODES_MAX ? make(n, number) : NULL;
    bool kept = false;
    if (node && !find_discard(node, version))
        kept = mcfs_table_add(&node->discards, dis) == 0;
    pthread_rwlock_unlock(&n->lock);
    if (!kept)
        free(dis);
    nodes_notify(n, number, "DiscardReplicas", &params);
}

bool nodes_is_discarded(struct nodes *n, uint32_t number, uint64_t version)
{
    pthread_rwlock_rdlock(&n->lock);
    struct node *node = get(n, number);
    bool there = node && find_discard(node, version);
    pthread_rwlock_unlock(&n->lock);
    return there;
}

void nodes_discarded(struct nodes *n, uint32_t number, uint64_t version)
{
    pthread_rwlock_wrlock(&n->lock);
    struct node *node = get(n, number);
    struct discard *dis = node ? find_discard(node, version) : NULL;
    if (dis && mcfs_table_del(&node->discards, dis))
        free(dis);
    pthread_rwlock_unlock(&n->lock);
}

uint32_t nodes_resend_discards(struct nodes *n, uint32_t number)
{
    _cleanup_buf_ struct mcfs_buf params = MCFS_BUF_INIT;
    uint32_t count = 0;
    pthread_rwlock_rdlock(&n->lock);
    struct node *node = get(n, number);
    if (node && node->discards.count) {
        struct discard *dis;
        mp_put_array(&params, 1);
        size_t at = mp_begin_array(&params);
        for (size_t k = 0; count < 1000 && (dis = mcfs_table_next(&node->discards, &k)); count++)
            put_discard(&params, dis);
        mp_end_array(&params, at, count);
    }
    pthread_rwlock_unlock(&n->lock);
    if (count)
        nodes_notify(n, number, "DiscardReplicas", &params);
    return count;
}
