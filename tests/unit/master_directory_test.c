/* SPDX-License-Identifier: Apache-2.0 */
#include "master/copied.h"
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

#define TENANT MCFS_SLICE_LITERAL("default")
#define KEYS 300

static atomic_int recalls;

static void on_recall(void *arg, uint32_t node, struct mcfs_slice t, struct mcfs_slice k,
                      uint64_t v)
{
    (void)arg, (void)node, (void)t, (void)k, (void)v;
    atomic_fetch_add(&recalls, 1);
}

static struct directory *make(uint32_t lease_ms)
{
    struct directory_config config = directory_alone("unix:/x");
    config.lease_ms = lease_ms;
    config.recall = on_recall;
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct directory *d = directory_new(&config, &err);
    cr_assert_not_null(d, "%s", err.msg);
    return d;
}

static uint64_t put(struct directory *d, uint32_t client, const char *key, uint64_t size)
{
    struct put_start start = {TENANT, mcfs_slice_str(key), size, client, true};
    uint64_t version;
    struct put_result out;
    struct mcfs_error err = MCFS_ERROR_INIT;
    cr_assert_eq(directory_put_start(d, &start, &version, &err), 0, "%s", err.msg);
    struct put_end end = {.tenant = TENANT,
                          .key = mcfs_slice_str(key),
                          .version = version,
                          .client = client,
                          .size = size,
                          .attr = {.mode = 0644, .mtime_ns = (int64_t)version}};
    cr_assert_eq(directory_put_end(d, &end, &out, &err), 0, "%s", err.msg);
    return version;
}

static int get(struct directory *d, uint32_t node, const char *key, struct object_view *v)
{
    return directory_get(d, TENANT, mcfs_slice_str(key), node, v, NULL);
}

static void key_name(char *out, int i)
{
    sprintf(out, i % 3 == 0 ? "top-%d" : i % 3 == 1 ? "dir/%d" : "a/b/%d/leaf", i);
}

struct listing {
    int objects, dirs;
};

static void count(const struct list_entry *e, void *arg)
{
    struct listing *l = arg;
    l->objects += !e->is_dir;
    l->dirs += e->is_dir;
}

static struct listing list(struct directory *d, const char *dir, uint32_t batch)
{
    struct listing l = {0, 0};
    uint64_t cookie = 0;
    do {
        directory_list(d, TENANT, mcfs_slice_str(dir), cookie, batch, false, count, &l, &cookie,
                       NULL);
    } while (cookie);
    return l;
}

Test(directory, agrees_with_a_plain_array)
{
    struct directory *d = make(60000);
    uint32_t client = directory_client(d, (struct mcfs_id){1, 1});
    uint64_t version[KEYS] = {0}, size[KEYS], bytes = 0, objects = 0, removed;
    srand(2);
    for (int step = 0; step < 30000; step++) {
        int i = rand() % KEYS;
        char key[32];
        struct object_view v;
        key_name(key, i);
        if (rand() % 2) {
            if (version[i])
                bytes -= size[i], objects--;
            size[i] = (uint64_t)rand();
            version[i] = put(d, client, key, size[i]);
            bytes += size[i], objects++;
        } else if (version[i]) {
            cr_assert_eq(
                directory_remove(d, TENANT, mcfs_slice_str(key), 0, client, false, &removed, NULL),
                0);
            cr_assert_eq(removed, version[i]);
            version[i] = 0;
            bytes -= size[i], objects--;
        }
        i = rand() % KEYS;
        key_name(key, i);
        cr_assert_eq(get(d, client, key, &v) == 0, version[i] != 0);
        if (version[i])
            cr_assert(v.version == version[i] && v.size == size[i] && v.replica_count == 1);
    }
    struct directory_stats s;
    directory_stats(d, &s);
    cr_assert(s.objects == objects && s.object_bytes == bytes);
    int top = 0, dir = 0, leaf = 0;
    for (int i = 0; i < KEYS; i++) {
        top += version[i] && i % 3 == 0;
        dir += version[i] && i % 3 == 1;
        leaf += version[i] && i % 3 == 2;
    }
    for (uint32_t batch = 1; batch < 400; batch *= 3) {
        cr_assert_eq(list(d, "", batch).objects, top);
        cr_assert_eq(list(d, "dir/", batch).objects, dir);
        cr_assert_eq(list(d, "a/b/", batch).dirs, leaf);
    }
    directory_clear(d);
    directory_stats(d, &s);
    cr_assert(s.objects == 0 && s.object_bytes == 0 && s.directories == 1);
    directory_free(d);
}

Test(directory, memory_comes_back_when_objects_go)
{
    struct directory *d = make(100);
    uint32_t client = directory_client(d, (struct mcfs_id){1, 1});
    struct directory_stats full, empty;
    char key[160];
    for (int i = 0; i < 100000; i++) {
        sprintf(key, "%0100d", i);
        put(d, client, key, 1);
    }
    directory_stats(d, &full);
    cr_assert_lt(full.memory_bytes / 100000, 100 + 150); /* slabs are not yet full at this number */
    directory_clear(d);
    directory_stats(d, &empty);
    cr_assert_lt(empty.memory_bytes, full.memory_bytes / 4);
    directory_free(d);
}

Test(directory, what_another_node_leases_is_recalled_before_it_changes)
{
    struct directory *d = make(60000);
    uint32_t a = directory_client(d, (struct mcfs_id){1, 1});
    uint32_t b = directory_client(d, (struct mcfs_id){2, 2});
    uint64_t removed, version = put(d, a, "k", 5);
    struct object_view v;
    struct mcfs_error err = MCFS_ERROR_INIT;
    atomic_store(&recalls, 0);
    cr_assert_eq(get(d, b, "k", &v), 0);
    cr_assert_gt(v.lease_ms, 59000u);
    cr_assert_eq(directory_remove(d, TENANT, mcfs_slice_str("k"), 0, a, false, &removed, &err), -1);
    cr_assert_eq(err.code, MCFS_OBJECT_HAS_LEASE);
    /* Several hold it: all are asked but the caller. */
    cr_assert_eq(atomic_load(&recalls), 1);
    directory_free(d);
    (void)version;
}

Test(directory, a_returned_lease_lets_the_change_through)
{
    struct directory *d = make(60000);
    uint32_t a = directory_client(d, (struct mcfs_id){1, 1});
    uint32_t b = directory_client(d, (struct mcfs_id){2, 2});
    struct mcfs_slice key = mcfs_slice_str("k");
    uint64_t removed, version = put(d, a, "k", 5);
    struct object_view v;
    directory_lease_returned(d, TENANT, key, version, a);
    cr_assert_eq(get(d, b, "k", &v), 0);
    cr_assert_eq(directory_remove(d, TENANT, key, 0, a, false, &removed, NULL), -1);
    /* While a recall runs, nobody gets a new lease, but everybody may read. */
    cr_assert_eq(get(d, b, "k", &v), 0);
    cr_assert_eq(v.lease_ms, 0u);
    directory_lease_returned(d, TENANT, key, version, b);
    /* Nor before whoever waits for it has had the time to ask again. */
    cr_assert_eq(get(d, b, "k", &v), 0);
    cr_assert_eq(v.lease_ms, 0u);
    cr_assert_eq(directory_remove(d, TENANT, key, 0, a, false, &removed, NULL), 0);
    directory_free(d);
}

Test(directory, a_lease_that_nobody_waits_for_any_more_is_granted_again)
{
    struct directory *d = make(60000);
    uint32_t a = directory_client(d, (struct mcfs_id){1, 1});
    uint32_t b = directory_client(d, (struct mcfs_id){2, 2});
    struct mcfs_slice key = mcfs_slice_str("k");
    uint64_t removed, version = put(d, a, "k", 5);
    struct object_view v = {.lease_ms = 0};
    directory_lease_returned(d, TENANT, key, version, a);
    cr_assert_eq(get(d, b, "k", &v), 0);
    cr_assert_eq(directory_remove(d, TENANT, key, 0, a, false, &removed, NULL), -1);
    directory_lease_returned(d, TENANT, key, version, b);
    for (int tries = 0; tries < 1000 && !v.lease_ms; tries++) {
        usleep(10000);
        cr_assert_eq(get(d, b, "k", &v), 0);
    }
    cr_assert_gt(v.lease_ms, 0u);
    directory_free(d);
}

Test(directory, puts_end_once_and_by_their_client)
{
    struct directory *d = make(1000);
    uint32_t a = directory_client(d, (struct mcfs_id){1, 1});
    uint32_t b = directory_client(d, (struct mcfs_id){2, 2});
    struct put_start start = {TENANT, mcfs_slice_str("k"), 5, a, false};
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct object_view v;
    uint64_t version, other;
    cr_assert_eq(directory_put_start(d, &start, &version, &err), 0);
    cr_assert_eq(get(d, a, "k", &v), -1); /* not visible yet */
    cr_assert_eq(directory_put_start(d, &start, &other, &err), -1);
    cr_assert_eq(err.code, MCFS_OBJECT_ALREADY_EXISTS);
    struct put_end end = {
        .tenant = TENANT, .key = mcfs_slice_str("k"), .version = version, .client = b};
    struct put_result out;
    cr_assert_eq(directory_put_end(d, &end, &out, &err), -1);
    cr_assert_eq(err.code, MCFS_ILLEGAL_CLIENT);
    end.client = a;
    cr_assert_eq(directory_put_end(d, &end, &out, &err), 0);
    cr_assert_eq(directory_put_end(d, &end, &out, &err),
                 0); /* the answer was lost and it is asked again */
    cr_assert_eq(directory_put_revoke(d, version, a, &err), 0);
    cr_assert_eq(get(d, a, "k", &v), 0);
    directory_free(d);
}

Test(directory, inventory_adopts_confirms_and_withdraws)
{
    struct directory *d = make(1000);
    uint32_t node = directory_client(d, (struct mcfs_id){1, 1});
    uint64_t kept = put(d, node, "kept", 5), dropped;
    put(d, node, "lost", 5);
    uint8_t g = directory_inventory_begin(d, node);
    struct mcfs_object o = {
        .tenant = TENANT, .key = mcfs_slice_str("kept"), .version = kept, .size = 5};
    cr_assert_eq(directory_inventory_item(d, node, g, &o, NULL), 1);
    o.version = kept - 1; /* an older version is nobody's */
    cr_assert_eq(directory_inventory_item(d, node, g, &o, NULL), 0);
    o.key = mcfs_slice_str("new");
    o.version = 77;
    cr_assert_eq(directory_inventory_item(d, node, g, &o, NULL), 1);
    directory_inventory_end(d, node, g, &dropped);
    struct object_view v;
    cr_assert_eq(dropped, 1u);
    cr_assert(get(d, node, "kept", &v) == 0 && get(d, node, "new", &v) == 0);
    cr_assert_eq(get(d, node, "lost", &v), -1);
    cr_assert_eq(directory_node_objects(d, node), 2u);
    directory_free(d);
}

struct worker {
    struct directory *d;
    uint32_t client;
    unsigned seed;
};

static void *work(void *arg)
{
    struct worker *w = arg;
    for (int step = 0; step < 4000; step++) {
        char key[32];
        uint64_t removed;
        struct object_view v;
        key_name(key, rand_r(&w->seed) % 40);
        unsigned slot = directory_enter(w->d);
        switch (rand_r(&w->seed) % 4) {
        case 0: {
            struct put_start start = {TENANT, mcfs_slice_str(key), 1, w->client, true};
            struct put_result out;
            uint64_t version;
            if (directory_put_start(w->d, &start, &version, NULL) == 0) {
                struct put_end end = {.tenant = TENANT,
                                      .key = mcfs_slice_str(key),
                                      .version = version,
                                      .client = w->client,
                                      .size = version & 0xffffff};
                directory_put_end(w->d, &end, &out, NULL);
            }
            break;
        }
        case 1:
            directory_remove(w->d, TENANT, mcfs_slice_str(key), 0, w->client, true, &removed, NULL);
            break;
        case 2:
            list(w->d, "", 7);
            break;
        default:
            /* An object is seen whole: size and version were put together. */
            if (get(w->d, w->client, key, &v) == 0)
                cr_assert_eq(v.size, v.version & 0xffffff);
        }
        directory_leave(w->d, slot);
    }
    return NULL;
}

Test(directory, many_threads_see_whole_objects)
{
    struct directory *d = make(0);
    struct worker w[4];
    pthread_t threads[4];
    for (unsigned i = 0; i < 4; i++) {
        w[i] = (struct worker){d, directory_client(d, (struct mcfs_id){1, i + 1}), i};
        pthread_create(&threads[i], NULL, work, &w[i]);
    }
    for (unsigned i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    directory_clear(d);
    struct directory_stats s;
    directory_stats(d, &s);
    cr_assert(s.objects == 0 && s.directories <= 1);
    directory_free(d);
}

static int restore_into(const struct snap_object *o, void *arg, struct mcfs_error *err)
{
    return directory_restore(arg, o, err) == 1 ? 0 : -1;
}

static atomic_bool changes_are_over;

static void *collapse_main(void *arg)
{
    while (!atomic_load(&changes_are_over))
        directory_collapse(arg);
    return NULL;
}

/* As a checkpoint's end does; the thread sanitizer sees whether it looks at what changes. */
Test(directory, pages_are_put_together_beside_changes)
{
    struct directory *d = make(0);
    pthread_t thread;
    char key[64];
    cr_assert_eq(pthread_create(&thread, NULL, collapse_main, d), 0);
    for (int i = 0; i < 6000; i++) { /* slabs are taken, and given back */
        uint64_t removed;
        snprintf(key, sizeof(key), "k%d", i / 2 % 1000);
        if (i % 2 == 0)
            put(d, 1, key, 1);
        else
            directory_remove(d, TENANT, mcfs_slice_str(key), 0, 1, true, &removed, NULL);
    }
    atomic_store(&changes_are_over, true);
    pthread_join(thread, NULL);
    directory_free(d);
}

Test(directory, image_of_one_makes_an_equal_other)
{
    struct directory *a = make(1000), *b = make(1000);
    uint32_t client = directory_client(a, (struct mcfs_id){3, 4});
    uint64_t versions[KEYS];
    char key[32];
    for (int i = 0; i < KEYS; i++) {
        key_name(key, i);
        versions[i] = put(a, client, key, (uint64_t)i);
    }
    for (uint32_t s = 0; s < MCFS_SHARD_COUNT; s++)
        cr_assert_eq(directory_visit_shard(a, s, restore_into, b, NULL), 0);
    for (int i = 0; i < KEYS; i++) {
        struct object_view v;
        key_name(key, i);
        cr_assert_eq(get(b, 0, key, &v), 0);
        cr_assert_eq(v.version, versions[i]);
        cr_assert(v.size == (uint64_t)i && v.attr.mtime_ns == (int64_t)versions[i]);
    }
    cr_assert_gt(directory_next_id(b), versions[KEYS - 1]);
    directory_free(a);
    directory_free(b);
}

/* What the parent changes, the child has to itself from then on. */
Test(directory, what_is_copied_on_write_is_counted)
{
    struct directory *d = make(1000);
    uint32_t node = directory_client(d, (struct mcfs_id){1, 2});
    char key[64];
    for (int i = 0; i < 20000; i++)
        put(d, node, (key_name(key, i), key), 100);
    uint64_t counts[2] = {0, 0};
    int go[2], said[2];
    char c = 0;
    cr_assert_eq(pipe(go) | pipe(said), 0);
    pid_t pid = fork();
    if (pid == 0) {
        counts[0] = copied_bytes(d);
        if (write(said[1], counts, sizeof(counts[0])) < 0 || read(go[0], &c, 1) < 0)
            _exit(1);
        counts[1] = copied_bytes(d);
        _exit(write(said[1], &counts[1], sizeof(counts[1])) < 0);
    }
    cr_assert_eq(read(said[0], &counts[0], sizeof(counts[0])), sizeof(counts[0]));
    for (int i = 0; i < 20000; i++)
        put(d, node, (key_name(key, i), key), 100);
    cr_assert_eq(write(go[1], "x", 1), 1);
    cr_assert_eq(read(said[0], &counts[1], sizeof(counts[1])), sizeof(counts[1]));
    waitpid(pid, NULL, 0);
    cr_assert_gt(counts[1], counts[0] + 20000 * sizeof(uint64_t));
    directory_free(d);
}
