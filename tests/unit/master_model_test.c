/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The directory held against a plain array, operation by operation, over thousands of runs; the
 * order in which threads see changes of one key; and images forked from under writers.
 */
#include "master/directory.h"
#include "snapshot/snapshot.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define TENANTS 2
#define KEYS 5 /* of each tenant */
#define PENDING 12
#define LIMIT 400 /* bytes of each tenant */

static int limit(void *arg, struct mcfs_slice tenant, uint64_t *bytes, struct mcfs_error *err)
{
    (void)arg, (void)tenant, (void)err;
    *bytes = LIMIT;
    return 0;
}

static struct directory *make(bool quotas)
{
    struct directory_config config = directory_alone("unix:/x");
    config.lease_ms = 0; /* leases have tests of their own */
    config.soft_pin_ms = config.put_discard_ms = config.put_release_ms = 3600000;
    if (quotas)
        config.quota = limit;
    struct directory *d = directory_new(&config, NULL);
    cr_assert_not_null(d);
    directory_client(d, (struct mcfs_id){1, 1});
    directory_client(d, (struct mcfs_id){2, 2});
    return d;
}

/* ---- against a plain array ---- */

static const char *const tenant_names[TENANTS] = {"red", "blue"};
static const char *const key_names[KEYS] = {"a", "d/x", "d/y", "d/e/z", "d"};
static const char *const group_names[3] = {"", "g", "a longer name of a group"};

struct entry {
    uint64_t version, size; /* version 0: not there */
    uint32_t client, mode;
    bool hard, soft;
    int group;
};

struct begun {
    uint64_t version, size, reserved;
    int tenant, key;
    uint32_t client;
    bool hard, has_soft, soft, has_group;
    int group;
};

struct model {
    struct directory *d;
    unsigned seed;
    struct entry objects[TENANTS][KEYS];
    struct begun begun[PENDING];
    int begun_count;
};

static int pick(struct model *m, int n)
{
    return (int)(rand_r(&m->seed) >> 8) % n;
}

static uint64_t used(const struct model *m, int tenant)
{
    uint64_t sum = 0;
    for (int i = 0; i < KEYS; i++)
        sum += m->objects[tenant][i].version ? m->objects[tenant][i].size : 0;
    for (int i = 0; i < m->begun_count; i++)
        sum += m->begun[i].tenant == tenant ? m->begun[i].reserved : 0;
    return sum;
}

static uint64_t less(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

static void forget(struct model *m, int i)
{
    m->begun[i] = m->begun[--m->begun_count];
}

static void step_start(struct model *m)
{
    struct begun b = {.tenant = pick(m, TENANTS),
                      .key = pick(m, KEYS),
                      .client = 1 + (uint32_t)pick(m, 2),
                      .size = (uint64_t)pick(m, 200),
                      .hard = pick(m, 8) == 0,
                      .has_soft = pick(m, 3) == 0,
                      .soft = pick(m, 2),
                      .has_group = pick(m, 3) == 0,
                      .group = pick(m, 3)};
    const struct entry *old = &m->objects[b.tenant][b.key];
    bool upsert = pick(m, 4) != 0, exists = old->version;
    struct put_start start = {.tenant = mcfs_slice_str(tenant_names[b.tenant]),
                              .key = mcfs_slice_str(key_names[b.key]),
                              .size = b.size,
                              .client = b.client,
                              .upsert = upsert,
                              .hard_pin = b.hard,
                              .has_soft_pin = b.has_soft,
                              .soft_pin_ms = b.soft ? SOFT_PIN_DEFAULT : 0,
                              .has_group = b.has_group,
                              .group = mcfs_slice_str(group_names[b.group])};
    struct mcfs_error err = MCFS_ERROR_INIT;
    for (int i = 0; i < m->begun_count; i++)
        exists |= m->begun[i].tenant == b.tenant && m->begun[i].key == b.key;
    b.reserved = less(b.size, old->version ? old->size : 0);
    int expect = !upsert && exists                                      ? MCFS_OBJECT_ALREADY_EXISTS
                 : b.reserved && used(m, b.tenant) + b.reserved > LIMIT ? MCFS_TENANT_QUOTA_EXCEEDED
                                                                        : 0;
    if (m->begun_count == PENDING)
        return;
    directory_put_start(m->d, &start, &b.version, &err);
    cr_assert_eq(err.code, expect, "PutStart: %s", err.msg);
    if (!expect)
        m->begun[m->begun_count++] = b;
}

static int expect_end(const struct model *m, const struct begun *b, const struct put_end *end,
                      const struct entry *old, const struct entry *from)
{
    if (b->client != end->client)
        return MCFS_ILLEGAL_CLIENT;
    if (old->version && end->no_replace)
        return MCFS_OBJECT_ALREADY_EXISTS;
    if (end->from_version && from->version != end->from_version)
        return MCFS_OBJECT_NOT_FOUND;
    uint64_t extra = less(end->size, b->reserved);
    uint64_t freed = (old->version ? old->size : 0) + (end->from_version ? from->size : 0);
    return extra && less(used(m, b->tenant), freed) + extra > LIMIT ? MCFS_TENANT_QUOTA_EXCEEDED
                                                                    : 0;
}

static void step_end(struct model *m)
{
    if (!m->begun_count)
        return;
    int i = pick(m, m->begun_count), from_key = pick(m, KEYS);
    struct begun b = m->begun[i];
    struct entry *old = &m->objects[b.tenant][b.key], *from = &m->objects[b.tenant][from_key];
    bool rename = pick(m, 4) == 0 && from_key != b.key;
    struct put_end end = {.tenant = mcfs_slice_str(tenant_names[b.tenant]),
                          .key = mcfs_slice_str(key_names[b.key]),
                          .version = b.version,
                          .client = pick(m, 10) ? b.client : 3 - b.client,
                          .size = pick(m, 3) ? b.size : (uint64_t)pick(m, 300),
                          .attr = {.mode = 0600 + (uint32_t)pick(m, 64)},
                          .no_replace = pick(m, 6) == 0};
    if (rename) {
        end.from = mcfs_slice_str(key_names[from_key]);
        end.from_version = from->version ? from->version : 1;
    }
    struct put_result out;
    struct mcfs_error err = MCFS_ERROR_INIT;
    int expect = expect_end(m, &b, &end, old, from);
    bool late = old->version > b.version && !rename && !end.no_replace && b.client == end.client;
    directory_put_end(m->d, &end, &out, &err);
    cr_assert_eq(err.code, late ? 0 : expect, "PutEnd: %s", err.msg);
    cr_assert_eq(out.superseded, late);
    if (!late && expect)
        return;
    if (!late) {
        cr_assert_eq(out.replaced_version, old->client == end.client ? old->version : 0);
        const struct entry was = *old, *inherits = rename ? from : &was;
        *old = (struct entry){
            .version = b.version,
            .size = end.size,
            .client = end.client,
            .mode = end.attr.mode,
            .hard = b.hard || (was.version && was.hard) || (rename && from->hard),
            .soft = b.has_soft ? b.soft : (rename && from->soft) || (was.version && was.soft),
            .group = b.has_group         ? b.group
                     : inherits->version ? inherits->group
                                         : 0};
        if (rename)
            *from = (struct entry){0};
        /* Again, because the answer was lost: nothing changes. */
        cr_assert_eq(directory_put_end(m->d, &end, &out, NULL), 0);
    }
    forget(m, i);
}

static void step_revoke(struct model *m)
{
    if (!m->begun_count)
        return;
    int i = pick(m, m->begun_count);
    uint32_t client = pick(m, 5) ? m->begun[i].client : 3 - m->begun[i].client;
    bool right = client == m->begun[i].client;
    cr_assert_eq(directory_put_revoke(m->d, m->begun[i].version, client, NULL), right ? 0 : -1);
    if (right)
        forget(m, i);
}

static void step_remove(struct model *m)
{
    int t = pick(m, TENANTS), k = pick(m, KEYS);
    struct entry *e = &m->objects[t][k];
    bool force = pick(m, 3) == 0;
    uint32_t client = 1 + (uint32_t)pick(m, 2);
    uint64_t removed, version = pick(m, 2) ? 0 : e->version + (uint64_t)(pick(m, 3) == 0);
    struct mcfs_error err = MCFS_ERROR_INIT;
    int expect = !e->version || (version && version != e->version) ? MCFS_OBJECT_NOT_FOUND
                 : e->hard && !force                               ? MCFS_ILLEGAL_CLIENT
                                                                   : 0;
    directory_remove(m->d, mcfs_slice_str(tenant_names[t]), mcfs_slice_str(key_names[k]), version,
                     client, force, &removed, &err);
    cr_assert_eq(err.code, expect, "Remove: %s", err.msg);
    if (expect)
        return;
    cr_assert_eq(removed, e->client == client ? e->version : 0);
    *e = (struct entry){0};
}

static void step_change(struct model *m)
{
    int t = pick(m, TENANTS), k = pick(m, KEYS), what = pick(m, 3);
    struct mcfs_slice tenant = mcfs_slice_str(tenant_names[t]);
    struct mcfs_slice key = mcfs_slice_str(key_names[k]);
    struct entry *e = &m->objects[t][k];
    struct mcfs_attr attr = {.mode = 0700 + (uint32_t)pick(m, 64)};
    bool on = pick(m, 2);
    uint64_t ms = on ? SOFT_PIN_DEFAULT : 0;
    int rc = what == 0   ? directory_set_attr(m->d, tenant, key, 0, 1, SET_MODE, &attr, NULL)
             : what == 1 ? directory_set_hard_pin(m->d, tenant, key, on, NULL)
                         : directory_set_soft_pin(m->d, tenant, key, &ms, NULL);
    cr_assert_eq(rc, e->version ? 0 : -1);
    if (rc)
        return;
    if (what == 0)
        e->mode = attr.mode;
    else if (what == 1)
        e->hard = on;
    else
        e->soft = on;
}

static void compare_key(const struct model *m, int t, int k)
{
    const struct entry *e = &m->objects[t][k];
    struct object_view v;
    struct mcfs_error err = MCFS_ERROR_INIT;
    int rc = directory_get(m->d, mcfs_slice_str(tenant_names[t]), mcfs_slice_str(key_names[k]), 0,
                           &v, &err);
    cr_assert_eq(rc, e->version ? 0 : -1);
    if (rc) {
        cr_assert_eq(err.code, MCFS_OBJECT_NOT_FOUND);
        return;
    }
    cr_assert_eq(v.version, e->version);
    cr_assert_eq(v.size, e->size);
    cr_assert_eq(v.attr.mode, e->mode);
    cr_assert_eq(v.hard_pin, e->hard);
    cr_assert_eq(v.soft_pin_ms > 0, e->soft);
    cr_assert(
        mcfs_slice_eq(mcfs_slice(v.group, v.group_len), mcfs_slice_str(group_names[e->group])));
    cr_assert_eq(v.replica_count, 1u);
    cr_assert_eq(v.replicas[0].node, e->client);
}

static void count_object(const struct list_entry *e, void *arg)
{
    *(uint64_t *)arg += !e->is_dir;
}

static void compare(const struct model *m)
{
    uint64_t objects = 0, bytes = 0, by_node[3] = {0};
    for (int t = 0; t < TENANTS; t++) {
        struct tenant_usage u;
        uint64_t mine = 0, reserved = 0, listed = 0, next;
        for (int k = 0; k < KEYS; k++) {
            const struct entry *e = &m->objects[t][k];
            compare_key(m, t, k);
            objects += e->version != 0;
            mine += e->version ? e->size : 0;
            by_node[e->client] += e->version != 0;
        }
        for (int i = 0; i < m->begun_count; i++)
            reserved += m->begun[i].tenant == t ? m->begun[i].reserved : 0;
        bytes += mine;
        directory_tenant_usage(m->d, mcfs_slice_str(tenant_names[t]), &u);
        cr_assert_eq(u.bytes, mine);
        cr_assert_eq(u.reserved_bytes, reserved);
        cr_assert(mine <= LIMIT);
        directory_list(m->d, mcfs_slice_str(tenant_names[t]), mcfs_slice_str("d/"), 0, 100, false,
                       count_object, &listed, &next, NULL);
        cr_assert_eq(listed, (uint64_t)(m->objects[t][1].version != 0) +
                                 (uint64_t)(m->objects[t][2].version != 0));
    }
    struct directory_stats s;
    directory_stats(m->d, &s);
    cr_assert_eq(s.objects, objects);
    cr_assert_eq(s.object_bytes, bytes);
    cr_assert_eq(s.pending_puts, (uint64_t)m->begun_count);
    cr_assert_eq(directory_node_objects(m->d, 1), by_node[1]);
    cr_assert_eq(directory_node_objects(m->d, 2), by_node[2]);
}

Test(model, agrees_with_a_plain_array_over_thousands_of_runs)
{
    struct model *m = calloc(1, sizeof(*m));
    struct directory *d = make(true);
    for (unsigned run = 0; run < 3000; run++) {
        *m = (struct model){.d = d, .seed = run * 7919 + 1};
        for (int step = 0; step < 120; step++) {
            switch (pick(m, 8)) {
            case 0:
            case 1:
                step_start(m);
                break;
            case 2:
            case 3:
            case 4:
                step_end(m);
                break;
            case 5:
                step_revoke(m);
                break;
            case 6:
                step_remove(m);
                break;
            default:
                step_change(m);
            }
            compare_key(m, pick(m, TENANTS), pick(m, KEYS));
            if (step % 20 == 19)
                compare(m);
        }
        while (m->begun_count) {
            cr_assert_eq(directory_put_revoke(d, m->begun[0].version, m->begun[0].client, NULL), 0);
            forget(m, 0);
        }
        directory_clear(d);
    }
    directory_free(d);
    free(m);
}

/* ---- the order of changes of one key ---- */

#define THREADS 3
#define OPS 6 /* of each thread in a round; a round's history is searched whole */
#define ROUNDS 400

enum kind { PUT, GET, REMOVE };

struct op {
    enum kind kind;
    uint64_t version; /* put, seen or removed; 0: there was nothing */
    bool superseded;
    uint64_t called, returned; /* by one clock */
};

static atomic_ullong ticks;
static pthread_barrier_t barrier;

struct actor {
    struct directory *d;
    unsigned seed;
    struct op ops[OPS];
};

static void act(struct actor *a, struct op *op)
{
    struct mcfs_slice tenant = mcfs_slice_str("t"), key = mcfs_slice_str("k");
    struct put_start start = {.tenant = tenant, .key = key, .client = 1, .upsert = true};
    struct put_end end = {.tenant = tenant, .key = key, .client = 1};
    struct put_result out;
    struct object_view v;
    op->kind = (enum kind)(rand_r(&a->seed) >> 8) % 3;
    op->version = 0;
    op->superseded = false;
    unsigned slot = directory_enter(a->d);
    if (op->kind == PUT) /* the version is handed out before the change begins */
        cr_assert_eq(directory_put_start(a->d, &start, &op->version, NULL), 0);
    op->called = atomic_fetch_add(&ticks, 1);
    if (op->kind == PUT) {
        end.version = op->version;
        cr_assert_eq(directory_put_end(a->d, &end, &out, NULL), 0);
        op->superseded = out.superseded;
    } else if (op->kind == GET) {
        if (directory_get(a->d, tenant, key, 0, &v, NULL) == 0)
            op->version = v.version;
    } else {
        directory_remove(a->d, tenant, key, 0, 1, false, &op->version, NULL);
    }
    op->returned = atomic_fetch_add(&ticks, 1);
    directory_leave(a->d, slot);
}

static void *actor_main(void *arg)
{
    struct actor *a = arg;
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < OPS; i++)
        act(a, &a->ops[i]);
    return NULL;
}

/* Whether the operations that are left (next[t] of each thread) can have happened one after the
 * other from `state` on, each between its call and its return. */
static bool explains(const struct actor *a, const int next[THREADS], uint64_t state)
{
    uint64_t first_return = UINT64_MAX;
    bool left = false;
    for (int t = 0; t < THREADS; t++)
        if (next[t] < OPS) {
            left = true;
            if (a[t].ops[next[t]].returned < first_return)
                first_return = a[t].ops[next[t]].returned;
        }
    if (!left)
        return true;
    for (int t = 0; t < THREADS; t++) {
        const struct op *op = next[t] < OPS ? &a[t].ops[next[t]] : NULL;
        if (!op || op->called > first_return)
            continue;
        bool may = op->kind == PUT ? op->superseded == (state > op->version) : op->version == state;
        if (!may)
            continue;
        uint64_t after = op->kind == PUT      ? op->superseded ? state : op->version
                         : op->kind == REMOVE ? 0
                                              : state;
        int rest[THREADS];
        memcpy(rest, next, sizeof(rest));
        rest[t]++;
        if (explains(a, rest, after))
            return true;
    }
    return false;
}

Test(model, changes_of_a_key_have_one_order)
{
    struct directory *d = make(false);
    struct actor *a = calloc(THREADS, sizeof(*a));
    pthread_barrier_init(&barrier, NULL, THREADS);
    for (unsigned round = 0; round < ROUNDS; round++) {
        pthread_t threads[THREADS];
        const int next[THREADS] = {0};
        uint64_t removed;
        directory_remove(d, mcfs_slice_str("t"), mcfs_slice_str("k"), 0, 1, true, &removed, NULL);
        for (unsigned t = 0; t < THREADS; t++) {
            a[t].d = d;
            a[t].seed = round * 31 + t;
            cr_assert_eq(pthread_create(&threads[t], NULL, actor_main, &a[t]), 0);
        }
        for (unsigned t = 0; t < THREADS; t++)
            pthread_join(threads[t], NULL);
        cr_assert(explains(a, next, 0), "round %u", round);
    }
    /* The search tells a history that cannot be. */
    for (int t = 0; t < THREADS; t++)
        for (int i = 0; i < OPS; i++)
            a[t].ops[i] = (struct op){.kind = GET, .called = (uint64_t)i, .returned = (uint64_t)i};
    const int next[THREADS] = {0};
    cr_assert(explains(a, next, 0));
    a[1].ops[3].version = 7;
    cr_assert_not(explains(a, next, 0));
    pthread_barrier_destroy(&barrier);
    free(a);
    directory_free(d);
}

/* ---- images of a directory that is being written to ---- */

#define WRITERS 3
#define WRITER_KEYS 40
#define FORKS 15

struct writer {
    struct directory *d;
    int number;
    atomic_ulong done; /* operations; steady while nobody is in the directory */
};

static struct writer writers[WRITERS];
static atomic_bool stop_writing;

/* Operation n of a writer depends on nothing but both: which key, what size, or removal. */
static int op_key(int writer, unsigned long n, uint64_t *size)
{
    uint64_t x = ((uint64_t)writer << 40 | n) * 0x9e3779b97f4a7c15ULL;
    x ^= x >> 29;
    *size = x % 5 == 0 ? 0 : 1 + (x >> 8) % 1000; /* 0: remove */
    return (int)((x >> 32) % WRITER_KEYS);
}

static void *writer_main(void *arg)
{
    struct writer *w = arg;
    for (unsigned long n = 0; !atomic_load(&stop_writing); n++) {
        char name[32];
        uint64_t size, version, removed;
        snprintf(name, sizeof(name), "w%d/%d", w->number, op_key(w->number, n, &size));
        struct mcfs_slice tenant = mcfs_slice_str("t"), key = mcfs_slice_str(name);
        unsigned slot = directory_enter(w->d);
        if (size) {
            struct put_start start = {.tenant = tenant, .key = key, .client = 1, .upsert = true};
            struct put_end end = {.tenant = tenant, .key = key, .client = 1, .size = size};
            struct put_result out;
            if (directory_put_start(w->d, &start, &version, NULL) == 0) {
                end.version = version;
                directory_put_end(w->d, &end, &out, NULL);
            }
        } else {
            directory_remove(w->d, tenant, key, 0, 1, true, &removed, NULL);
        }
        atomic_store(&w->done, n + 1);
        directory_leave(w->d, slot);
    }
    return NULL;
}

struct image {
    uint64_t sizes[WRITERS][WRITER_KEYS]; /* 0: not there */
    unsigned objects;
};

static int look(const struct snap_object *o, void *arg, struct mcfs_error *err)
{
    struct image *i = arg;
    char name[32];
    int w, k;
    (void)err;
    snprintf(name, sizeof(name), "%.*s", (int)o->key.len, o->key.data);
    if (sscanf(name, "w%d/%d", &w, &k) != 2 || w < 0 || w >= WRITERS || k < 0 || k >= WRITER_KEYS ||
        o->replica_count != 1 || o->replicas[0].size != o->size)
        return -1;
    i->sizes[w][k] = o->size;
    i->objects++;
    return 0;
}

/* In the child: the image is what the operations that were done before it make. */
static int check_image(struct directory *d, const unsigned long *done)
{
    static struct image got, want;
    for (uint32_t s = 0; s < MCFS_SHARD_COUNT; s++)
        if (directory_visit_shard(d, s, look, &got, NULL))
            return 2;
    for (int w = 0; w < WRITERS; w++)
        for (unsigned long n = 0; n < done[w]; n++) {
            uint64_t size;
            int k = op_key(w, n, &size);
            want.sizes[w][k] = size;
        }
    unsigned objects = 0;
    for (int w = 0; w < WRITERS; w++)
        for (int k = 0; k < WRITER_KEYS; k++)
            objects += want.sizes[w][k] != 0;
    return got.objects == objects && memcmp(got.sizes, want.sizes, sizeof(want.sizes)) == 0 ? 0 : 1;
}

static int fork_and_check(void *arg)
{
    unsigned long done[WRITERS];
    for (int w = 0; w < WRITERS; w++)
        done[w] = atomic_load(&writers[w].done);
    pid_t pid = fork();
    if (pid == 0)
        _exit(check_image(arg, done));
    return pid;
}

Test(model, an_image_forked_under_load_is_a_state_that_was)
{
    struct directory *d = make(false);
    pthread_t threads[WRITERS];
    atomic_store(&stop_writing, false);
    for (int w = 0; w < WRITERS; w++) {
        writers[w].d = d;
        writers[w].number = w;
        cr_assert_eq(pthread_create(&threads[w], NULL, writer_main, &writers[w]), 0);
    }
    for (int i = 0; i < FORKS; i++) {
        int status;
        usleep(3000);
        pid_t pid = directory_exclusive(d, fork_and_check, d);
        cr_assert_gt(pid, 0);
        cr_assert_eq(waitpid(pid, &status, 0), pid);
        cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %x", (unsigned)status);
    }
    atomic_store(&stop_writing, true);
    for (int w = 0; w < WRITERS; w++)
        pthread_join(threads[w], NULL);
    /* The check itself can fail: one operation more than there was. */
    unsigned long wrong[WRITERS];
    for (int w = 0; w < WRITERS; w++) {
        uint64_t size, last = 0;
        wrong[w] = atomic_load(&writers[w].done);
        for (unsigned long n = wrong[w]; last == 0; n++)
            if (op_key(w, n, &size) >= 0 && size)
                last = wrong[w] = n + 1;
    }
    cr_assert_eq(check_image(d, wrong), 1);
    directory_free(d);
}
