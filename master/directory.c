/* SPDX-License-Identifier: Apache-2.0 */
#include "master/directory.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "master/object_memory.h"
#include "master/pending.h"
#include "master/record.h"

#define RECORD_SPACE (16ull << 30) /* address space for 2^28 records */
#define KEY_SPACE (32ull << 30)    /* and for their keys: 2^32 units of 8 bytes */
#define SLAB_BYTES (16u << 10)
#define TENANTS_MAX 65535
#define CLIENTS_MAX (1u << 20)
#define ATTRS_MAX (1u << 24)

struct directory *directory_new(const struct directory_config *config, struct mcfs_error *err)
{
    struct directory *d = calloc(1, sizeof(*d));
    if (!d) {
        mcfs_fail_errno(err, ENOMEM, "directory");
        return NULL;
    }
    d->config = *config;
    d->records = arena_new(
        &(struct arena_config){RECORD_SPACE, sizeof(struct record), SLAB_BYTES, ARENA_STRIPES},
        err);
    d->keys =
        arena_new(&(struct arena_config){KEY_SPACE, KEY_UNIT, SLAB_BYTES, ARENA_STRIPES}, err);
    d->leases = lease_table_new(SLOT_MAX + 1, err);
    d->tree = tree_new(err);
    d->tenants = intern_new(TENANTS_MAX);
    d->clients = intern_new(CLIENTS_MAX);
    d->attrs = intern_new(ATTRS_MAX);
    d->groups = group_leases_new();
    d->soft_pins = soft_pins_new();
    d->pending = pending_new();
    d->put_spaces = put_spaces_new();
    d->segments = segments_new();
    d->tenant_objects = calloc(TENANTS_MAX + 1, sizeof(*d->tenant_objects));
    d->tenant_bytes = calloc(TENANTS_MAX + 1, sizeof(*d->tenant_bytes));
    d->tenant_reserved = calloc(TENANTS_MAX + 1, sizeof(*d->tenant_reserved));
    for (unsigned i = 0; i < USAGE_LOCKS; i++)
        pthread_mutex_init(&d->usage_locks[i], NULL);
    if (!d->records || !d->keys || !d->leases || !d->tree || !d->tenants || !d->clients ||
        !d->attrs || !d->groups || !d->soft_pins || !d->pending || !d->put_spaces || !d->segments ||
        !d->tenant_objects || !d->tenant_bytes || !d->tenant_reserved || shard_tables_new(d, err)) {
        if (err && err->code == MCFS_OK)
            mcfs_fail_errno(err, ENOMEM, "directory");
        directory_free(d);
        return NULL;
    }
    d->record_base = arena_base(d->records);
    d->key_base = arena_base(d->keys);
    for (uint32_t i = 0; i < MCFS_SHARD_COUNT; i++)
        pthread_mutex_init(&d->shards[i].lock, NULL);
    /* Versions must not come again after a restart without a snapshot, so they start from the
     * clock. */
    d->next_id = (uint64_t)mcfs_wall_ns() / 1000;
    d->started_mono_ms = mcfs_mono_ms();
    return d;
}

void directory_free(struct directory *d)
{
    if (!d)
        return;
    pending_free(d->pending);
    put_spaces_free(d->put_spaces);
    segments_free(d->segments);
    tree_free(d->tree);
    lease_table_free(d->leases);
    group_leases_free(d->groups);
    soft_pins_free(d->soft_pins);
    arena_free_all(d->records);
    arena_free_all(d->keys);
    intern_free(d->tenants);
    intern_free(d->clients);
    intern_free(d->attrs);
    shard_tables_free(d);
    free(d->tenant_objects);
    free(d->tenant_bytes);
    free(d->tenant_reserved);
    for (unsigned i = 0; i < USAGE_LOCKS; i++)
        pthread_mutex_destroy(&d->usage_locks[i]);
    free(d);
}

struct segments *directory_segments(struct directory *d)
{
    return d->segments;
}

unsigned directory_enter(struct directory *d)
{
    return gate_enter(&d->gate);
}

void directory_leave(struct directory *d, unsigned slot)
{
    gate_leave(&d->gate, slot);
}

uint32_t directory_client(struct directory *d, struct mcfs_id id)
{
    return intern_put(d->clients, mcfs_slice(&id, sizeof(id)));
}

struct mcfs_id directory_client_id(struct directory *d, uint32_t client)
{
    struct mcfs_id id = {0, 0};
    struct mcfs_slice s = intern_get(d->clients, client);
    if (s.len == sizeof(id))
        memcpy(&id, s.data, sizeof(id));
    return id;
}

int check_key(struct mcfs_slice tenant, struct mcfs_slice key, struct mcfs_error *err)
{
    if (tenant.len == 0 || tenant.len > MCFS_TENANT_MAX || memchr(tenant.data, 0, tenant.len) ||
        memchr(tenant.data, '/', tenant.len))
        return mcfs_fail(err, MCFS_INVALID_PARAMS,
                         "a tenant's name has 1 to %d bytes and no '/' or NUL in it",
                         MCFS_TENANT_MAX);
    if (key.len == 0)
        return mcfs_fail(err, MCFS_INVALID_KEY, "an object key cannot be empty");
    if (key.len > MCFS_KEY_MAX) {
        mcfs_fail(err, MCFS_INVALID_KEY, "an object key has at most %d bytes; this one has %zu",
                  MCFS_KEY_MAX, key.len);
        if (err)
            err->errnum = ENAMETOOLONG;
        return -1;
    }
    return 0;
}

static int not_found(struct mcfs_slice key, struct mcfs_error *err)
{
    return mcfs_fail(err, MCFS_OBJECT_NOT_FOUND, "%.*s: no such object",
                     (int)MCFS_MIN(key.len, 200), key.data);
}

static void view_replicas(struct directory *d, const struct record *r, struct object_view *out)
{
    out->replica_count = 0;
    if (r->flags & RECORD_INLINE)
        out->replicas[out->replica_count++] =
            (struct replica_view){.id = r->version,
                                  .size = r->size,
                                  .type = MCFS_REPLICA_LOCAL_DISK,
                                  .status = MCFS_REPLICA_COMPLETE,
                                  .connected = d->config.connected(d->config.arg, r->node),
                                  .node = r->node};
    const struct side *side = record_side(d, r);
    if (!side)
        return;
    out->has_checksum = side->has_checksum;
    out->checksum = side->checksum;
    for (uint32_t i = 0; i < side->count && out->replica_count < VIEW_REPLICAS_MAX; i++) {
        const struct side_replica *s = &side->replicas[i];
        if (s->status != MCFS_REPLICA_COMPLETE)
            continue;
        bool local = s->type == MCFS_REPLICA_LOCAL_DISK;
        struct replica_view *v = &out->replicas[out->replica_count];
        *v =
            (struct replica_view){.id = s->id,
                                  .size = s->size,
                                  .type = s->type,
                                  .status = (uint8_t)s->status,
                                  .connected = local && d->config.connected(d->config.arg, s->node),
                                  .node = local ? s->node : 0};
        if (s->type == MCFS_REPLICA_MEMORY) {
            v->segment = s->segment;
            v->address = s->address;
            if (!segments_live(d->segments, s->segment, &v->connected))
                continue; /* about to be swept */
            v->serial = segments_serial(d->segments, s->segment);
        }
        out->replica_count++;
    }
}

/* The object's group, on which the node gets a lease with that of the object. */
static void view_group(struct directory *d, const struct record *r, struct object_view *out,
                       uint32_t node)
{
    struct mcfs_slice group = record_group(d, r);
    if (!group.len)
        return;
    if (out->lease_ms)
        group_lease_grant(d->groups, r->tenant, group, node, d->config.lease_ms);
    if (group.len > GROUP_NAME_MAX)
        return; /* from a snapshot of others; kept, and too long to be shown */
    out->group_len = (uint8_t)group.len;
    memcpy(out->group, group.data, group.len);
}

/* What the directory knows of a record, and a lease on it.  The shard's lock is held. */
static void view_record(struct directory *d, struct key_hash h, uint32_t slot, uint32_t node,
                        uint32_t now, struct object_view *out)
{
    struct record *r = record_at(d, slot);
    memset(out, 0, offsetof(struct object_view, group));
    out->version = r->version;
    out->size = r->size;
    out->attr = record_attr(d, r);
    out->shard = h.shard;
    out->cookie = (uint64_t)r->place + 1;
    out->data_type = r->data_type;
    out->hard_pin = r->flags & RECORD_HARD_PIN;
    if (node)
        out->lease_ms = lease_grant(d->leases, slot, node, d->config.lease_ms, now);
    if (r->flags & RECORD_SOFT_PIN)
        out->soft_pin_ms = soft_pin_left_ms(d->soft_pins, slot);
    if (r->side)
        view_group(d, r, out, node);
    view_replicas(d, r, out);
}

/* A key whose hash is known. */
static int get_hashed(struct directory *d, struct key_hash h, uint32_t tenant,
                      struct mcfs_slice key, uint32_t node, uint32_t now, struct object_view *out,
                      struct mcfs_error *err)
{
    MCFS_LOCK_SCOPE(&d->shards[h.shard].lock);
    uint32_t slot = tenant ? shard_find(d, h, tenant, key) : 0;
    if (!slot)
        return not_found(key, err);
    view_record(d, h, slot, node, now, out);
    /* Its last memory has just gone, and the walk that takes such objects out is under way. */
    return out->replica_count ? 0 : not_found(key, err);
}

int directory_get(struct directory *d, struct mcfs_slice tenant, struct mcfs_slice key,
                  uint32_t node, struct object_view *out, struct mcfs_error *err)
{
    if (check_key(tenant, key, err))
        return -1;
    uint32_t tenant_number = intern_find(d->tenants, tenant);
    struct key_hash h = key_hash(tenant, key);
    atomic_fetch_add_explicit(&d->lookups, 1, memory_order_relaxed);
    if (get_hashed(d, h, tenant_number, key, node, node ? lease_now(d->leases) : 0, out, err))
        return -1;
    if (out->lease_ms)
        lease_count_granted(d->leases, 1);
    return 0;
}

/* Where a slot's key is, as far as can be told without the shard's lock: the record may be freed or
 * made anew meanwhile, and then this is any number.  It only says what to fetch ahead, which may be
 * any address. */
__attribute__((no_sanitize_thread)) static uint32_t guess_key(const struct directory *d,
                                                              uint32_t slot)
{
    return slot ? __atomic_load_n(&record_at(d, slot)->key, __ATOMIC_RELAXED) : 0;
}

/* In the order in which one says where the next is: table, record and lease, key. */
void record_fetch_ahead(struct directory *d, const struct key_hash *h,
                        const struct mcfs_slice *keys, uint32_t n)
{
    uint32_t slots[DIRECTORY_AHEAD_MAX];
    for (uint32_t i = 0; i < n; i++)
        shard_prefetch(d, h[i]);
    for (uint32_t i = 0; i < n; i++) {
        slots[i] = shard_first(d, h[i]);
        if (slots[i]) {
            __builtin_prefetch(record_at(d, slots[i]));
            lease_prefetch(d->leases, slots[i]);
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t key = guess_key(d, slots[i]);
        for (size_t at = 0; key && at < keys[i].len; at += 64)
            __builtin_prefetch(d->key_base + (uint64_t)key * KEY_UNIT + at);
    }
}

void directory_get_batch(struct directory *d, struct mcfs_slice tenant,
                         const struct mcfs_slice *keys, uint32_t n, uint32_t node,
                         void (*fn)(uint32_t i, const struct object_view *view,
                                    const struct mcfs_error *err, void *arg),
                         void *arg)
{
    struct key_hash h[DIRECTORY_AHEAD_MAX];
    struct object_view view = {.lease_ms = 0};
    uint32_t number = intern_find(d->tenants, tenant), now = lease_now(d->leases), granted = 0;
    for (uint32_t from = 0; from < n; from += DIRECTORY_AHEAD_MAX) {
        uint32_t count = MCFS_MIN(n - from, DIRECTORY_AHEAD_MAX);
        for (uint32_t i = 0; i < count; i++)
            h[i] = key_hash(tenant, keys[from + i]);
        record_fetch_ahead(d, h, keys + from, count);
        for (uint32_t i = 0; i < count; i++) {
            struct mcfs_slice key = keys[from + i];
            struct mcfs_error err;
            bool found = !check_key(tenant, key, &err) &&
                         !get_hashed(d, h[i], number, key, node, now, &view, &err);
            granted += found && view.lease_ms;
            fn(from + i, found ? &view : NULL, &err, arg);
        }
    }
    atomic_fetch_add_explicit(&d->lookups, n, memory_order_relaxed);
    lease_count_granted(d->leases, granted);
}

/* "a/b" as a directory's path "a/b/"; "" is the root. */
static uint32_t find_dir(struct directory *d, uint32_t tenant, struct mcfs_slice path)
{
    char with_slash[MCFS_KEY_MAX + 1];
    if (path.len == 0)
        return tree_dir(d->tree, tenant, path, false);
    if (path.len > MCFS_KEY_MAX)
        return 0;
    memcpy(with_slash, path.data, path.len);
    with_slash[path.len] = '/';
    return tree_dir(d->tree, tenant, mcfs_slice(with_slash, path.len + 1), false);
}

bool directory_is_dir(struct directory *d, struct mcfs_slice tenant, struct mcfs_slice path,
                      int64_t *mtime_ns)
{
    uint32_t number = intern_find(d->tenants, tenant);
    if (!number)
        return false;
    tree_lock(d->tree);
    uint32_t dir = find_dir(d, number, path);
    if (dir)
        *mtime_ns = tree_mtime_ns(d->tree, dir);
    tree_unlock(d->tree);
    return dir != 0;
}

static struct list_entry entry_of(struct directory *d, uint32_t dir, uint32_t child,
                                  bool names_only)
{
    if (child & TREE_CHILD_DIR) {
        uint32_t sub = child & ~TREE_CHILD_DIR;
        return (struct list_entry){.name = tree_name(d->tree, sub),
                                   .is_dir = true,
                                   .attr = {.mtime_ns = tree_mtime_ns(d->tree, sub)}};
    }
    /* A visible record changes only under the tree's lock as well as its shard's. */
    const struct record *r = record_at(d, child);
    struct mcfs_slice key = record_key(d, r);
    const char *slash = memrchr(key.data, '/', key.len);
    struct mcfs_slice name = key;
    if (slash)
        name = mcfs_slice(slash + 1, key.len - (size_t)(slash + 1 - key.data));
    struct list_entry e = {.name = name,
                           .shadowed = tree_has_subdirs(d->tree, dir) &&
                                       tree_subdir(d->tree, dir, name) != 0};
    if (!names_only) {
        e.version = r->version;
        e.size = r->size;
        e.attr = record_attr(d, r);
    }
    return e;
}

/* Brings what entry_of will touch soon, in two steps: the record says where the key is. */
static void prefetch_child(struct directory *d, uint32_t dir, uint32_t place)
{
    uint32_t far = tree_peek(d->tree, dir, place + 16), near = tree_peek(d->tree, dir, place + 8);
    if (far && !(far & TREE_CHILD_DIR))
        __builtin_prefetch(record_at(d, far));
    if (near && !(near & TREE_CHILD_DIR))
        __builtin_prefetch(d->key_base + (uint64_t)guess_key(d, near) * KEY_UNIT);
}

int directory_list(struct directory *d, struct mcfs_slice tenant, struct mcfs_slice path,
                   uint64_t cookie, uint32_t max, bool names_only,
                   void (*fn)(const struct list_entry *entry, void *arg), void *arg, uint64_t *next,
                   struct mcfs_error *err)
{
    uint32_t number = intern_find(d->tenants, tenant), place = 0;
    *next = 0;
    if (cookie >= UINT32_MAX)
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "listing cookie out of range");
    tree_lock(d->tree);
    uint32_t dir = number ? tree_dir(d->tree, number, path, false) : 0;
    place = (uint32_t)cookie;
    for (uint32_t i = 0; dir; i++) {
        prefetch_child(d, dir, place);
        uint32_t before = place, child = tree_next(d->tree, dir, &place);
        if (!child)
            break;
        if (i == max) {
            *next = before;
            break;
        }
        struct list_entry e = entry_of(d, dir, child, names_only);
        e.cookie = place;
        fn(&e, arg);
    }
    tree_unlock(d->tree);
    return dir || path.len == 0 ? 0 : not_found(path, err);
}

int directory_exclusive(struct directory *d, int (*fn)(void *arg), void *arg)
{
    gate_close(&d->gate);
    int rc = fn(arg);
    gate_open(&d->gate);
    return rc;
}

bool directory_holds(const struct directory *d, const void *p)
{
    const uint8_t *table = (const uint8_t *)d->table, *at = p;
    return arena_holds(d->records, p) || arena_holds(d->keys, p) ||
           (at >= table && at < table + d->table_bytes);
}

uint64_t directory_next_id(struct directory *d)
{
    return atomic_load(&d->next_id);
}

void directory_raise_next_id(struct directory *d, uint64_t id)
{
    uint64_t now = atomic_load(&d->next_id);
    while (id > now && !atomic_compare_exchange_weak(&d->next_id, &now, id))
        ;
}

void directory_clear(struct directory *d)
{
    for (uint32_t shard = 0; shard < MCFS_SHARD_COUNT; shard++) {
        MCFS_LOCK_SCOPE(&d->shards[shard].lock);
        for (uint32_t i = 0; i <= d->shards[shard].mask;) {
            uint32_t slot = shard_slot_at(d, shard, i);
            if (!slot) {
                i++;
                continue;
            }
            struct record *r = record_at(d, slot);
            /* Deleting moves others up into this place, so it is looked at again. */
            record_delete(d, key_hash(intern_get(d->tenants, r->tenant), record_key(d, r)), slot);
        }
    }
    put_spaces_clear(d->put_spaces);
    segments_clear(d->segments);
    atomic_store(&d->restored_replicas, 0);
    atomic_store(&d->lost_segments, 0);
    atomic_store(&d->lost_ranges, 0);
}

void directory_shard_keys(struct directory *d, struct mcfs_slice tenant, uint32_t shard,
                          void (*fn)(struct mcfs_slice key, void *arg), void *arg)
{
    uint32_t number = intern_find(d->tenants, tenant);
    if (!number)
        return;
    MCFS_LOCK_SCOPE(&d->shards[shard].lock);
    for (uint32_t i = 0; i <= d->shards[shard].mask; i++) {
        uint32_t slot = shard_slot_at(d, shard, i);
        if (slot && record_at(d, slot)->tenant == number)
            fn(record_key(d, record_at(d, slot)), arg);
    }
}

void directory_collapse(struct directory *d)
{
    arena_collapse(d->records);
    arena_collapse(d->keys);
}

uint64_t directory_node_objects(struct directory *d, uint32_t node)
{
    return node < 65536 ? atomic_load(&d->node_objects[node]) : 0;
}

void directory_stats(struct directory *d, struct directory_stats *out)
{
    uint64_t table = 0;
    for (uint32_t i = 0; i < MCFS_SHARD_COUNT; i++)
        table += ((uint64_t)__atomic_load_n(&d->shards[i].mask, __ATOMIC_RELAXED) + 1) *
                 sizeof(uint32_t);
    tree_lock(d->tree);
    uint64_t directories = tree_count(d->tree);
    tree_unlock(d->tree);
    *out = (struct directory_stats){.objects = atomic_load(&d->objects),
                                    .object_bytes = atomic_load(&d->object_bytes),
                                    .directories = directories,
                                    .pending_puts = pending_count(d->pending, false),
                                    .discarded_puts = pending_count(d->pending, true),
                                    .memory_bytes = arena_resident_bytes(d->records) +
                                                    arena_resident_bytes(d->keys) + table,
                                    .leases_granted = lease_granted_count(d->leases),
                                    .recalls = lease_recall_count(d->leases),
                                    .lookups = atomic_load(&d->lookups),
                                    .puts = atomic_load(&d->puts),
                                    .removes = atomic_load(&d->removes),
                                    .evicted_replicas = atomic_load(&d->evicted_replicas),
                                    .evicted_bytes = atomic_load(&d->evicted_bytes),
                                    .restored_replicas = atomic_load(&d->restored_replicas),
                                    .restore_lost_segments = atomic_load(&d->lost_segments),
                                    .restore_lost_ranges = atomic_load(&d->lost_ranges)};
}

void directory_tenant_stats(struct directory *d, struct mcfs_slice tenant, uint64_t *objects,
                            uint64_t *bytes)
{
    uint32_t number = intern_find(d->tenants, tenant);
    *objects = number ? atomic_load(&d->tenant_objects[number]) : 0;
    *bytes = number ? atomic_load(&d->tenant_bytes[number]) : 0;
}

void directory_tenant_usage(struct directory *d, struct mcfs_slice tenant, struct tenant_usage *out)
{
    uint32_t number = intern_find(d->tenants, tenant);
    *out = (struct tenant_usage){0};
    directory_tenant_stats(d, tenant, &out->objects, &out->bytes);
    out->reserved_bytes = number ? atomic_load(&d->tenant_reserved[number]) : 0;
}

void directory_tenants(struct directory *d, void (*fn)(struct mcfs_slice tenant, void *arg),
                       void *arg)
{
    for (uint32_t i = 1; i <= intern_count(d->tenants); i++)
        if (atomic_load(&d->tenant_objects[i]))
            fn(intern_get(d->tenants, i), arg);
}
