/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/inode.h"
#include "fs/locks.h"

#include "common/cleanup.h"
#include "common/hash.h"
#include "common/table.h"

#include <stdatomic.h>

#define STRIPES 64

/* The table's entry is the first inode of a name; the others hang from it by `next`. */
struct stripe {
    pthread_mutex_t lock;
    struct mcfs_table names;
    struct inode *nameless; /* unlinked while somebody has them */
} __attribute__((aligned(64)));

struct inode_table {
    struct stripe stripes[STRIPES];
    struct inode *root;
    atomic_ullong count;
};

struct name {
    struct mcfs_slice tenant, key;
};

static uint64_t hash_name(struct mcfs_slice tenant, struct mcfs_slice key)
{
    return mcfs_hash_seed(key.data, key.len, mcfs_hash(tenant.data, tenant.len));
}

static uint64_t inode_hash(const void *e)
{
    const struct inode *i = e;
    return hash_name(inode_tenant(i), inode_key(i));
}

static bool inode_eq(const void *e, const void *key)
{
    const struct inode *i = e;
    const struct name *n = key;
    return mcfs_slice_eq(inode_key(i), n->key) && mcfs_slice_eq(inode_tenant(i), n->tenant);
}

static struct stripe *stripe_of(struct inode_table *t, uint64_t hash)
{
    return &t->stripes[hash >> 58];
}

static struct inode *first(struct stripe *s, uint64_t hash, struct mcfs_slice tenant,
                           struct mcfs_slice key)
{
    struct name n = {tenant, key};
    return mcfs_table_find(&s->names, hash, inode_eq, &n);
}

static struct inode_name *make_name(struct mcfs_slice tenant, struct mcfs_slice key)
{
    struct inode_name *n = malloc(sizeof(*n) + tenant.len + key.len);
    if (!n)
        return NULL;
    if (tenant.len)
        memcpy(n->bytes, tenant.data, tenant.len);
    if (key.len)
        memcpy(n->bytes + tenant.len, key.data, key.len);
    n->older = NULL;
    n->tenant = mcfs_slice(n->bytes, tenant.len);
    n->key = mcfs_slice(n->bytes + tenant.len, key.len);
    return n;
}

static struct inode *make(struct inode_table *t, enum inode_kind kind, struct mcfs_slice tenant,
                          struct mcfs_slice key)
{
    struct inode *i = calloc(1, sizeof(*i));
    struct inode_name *name = make_name(tenant, key);
    if (!i || !name) {
        free(i);
        free(name);
        return NULL;
    }
    atomic_init(&i->name, name);
    atomic_init(&i->stripe, (unsigned)(hash_name(tenant, key) >> 58));
    i->kind = kind;
    i->refs = 1;
    pthread_mutex_init(&i->lock, NULL);
    atomic_fetch_add(&t->count, 1);
    return i;
}

static void destroy(struct inode_table *t, struct inode *i)
{
    lock_file_unref(atomic_load(&i->locks));
    staging_free(i->staging);
    node_reader_close(i->held);
    free(i->content);
    pthread_mutex_destroy(&i->lock);
    for (struct inode_name *n = atomic_load(&i->name), *older; n; n = older) {
        older = n->older;
        free(n);
    }
    free(i);
    atomic_fetch_sub(&t->count, 1);
}

/* Locks the stripe that an inode hangs in; renaming may move it meanwhile. */
static struct stripe *lock_stripe(struct inode_table *t, struct inode *i)
{
    for (;;) {
        unsigned number = atomic_load(&i->stripe);
        struct stripe *s = &t->stripes[number];
        pthread_mutex_lock(&s->lock);
        if (atomic_load(&i->stripe) == number)
            return s;
        pthread_mutex_unlock(&s->lock);
    }
}

/* The stripe's lock is held in the functions below. */

static int link_inode(struct stripe *s, uint64_t hash, struct inode *i)
{
    struct inode *head = first(s, hash, inode_tenant(i), inode_key(i));
    if (head) {
        i->next = head->next;
        head->next = i;
    } else if (mcfs_table_add(&s->names, i)) {
        return -1;
    }
    i->linked = true;
    return 0;
}

static void add_nameless(struct stripe *s, struct inode *i)
{
    i->prev = NULL;
    i->next = s->nameless;
    if (i->next)
        i->next->prev = i;
    s->nameless = i;
}

static void remove_nameless(struct stripe *s, struct inode *i)
{
    if (i->next)
        i->next->prev = i->prev;
    *(i->prev ? &i->prev->next : &s->nameless) = i->next;
}

/* Takes an inode out of the table, wherever it hangs. */
static void take_out(struct stripe *s, uint64_t hash, struct inode *i)
{
    if (!i->linked) {
        remove_nameless(s, i);
        return;
    }
    struct inode *head = first(s, hash, inode_tenant(i), inode_key(i));
    if (head == i) {
        mcfs_table_del(&s->names, i);
        /* There was room for one a moment ago. */
        if (i->next && mcfs_table_add(&s->names, i->next))
            abort();
    } else {
        while (head->next != i)
            head = head->next;
        head->next = i->next;
    }
    i->next = NULL;
    i->linked = false;
}

struct inode_table *inode_table_new(void)
{
    struct inode_table *t = aligned_alloc(64, sizeof(*t));
    if (!t)
        return NULL;
    memset(t, 0, sizeof(*t));
    for (unsigned k = 0; k < STRIPES; k++) {
        pthread_mutex_init(&t->stripes[k].lock, NULL);
        t->stripes[k].names = (struct mcfs_table)MCFS_TABLE_INIT(inode_hash);
    }
    t->root = make(t, INODE_ROOT, mcfs_slice("", 0), mcfs_slice("", 0));
    if (!t->root) {
        free(t);
        return NULL;
    }
    return t;
}

static void destroy_list(struct inode_table *t, struct inode *head)
{
    while (head) {
        struct inode *next = head->next;
        destroy(t, head);
        head = next;
    }
}

void inode_table_free(struct inode_table *t)
{
    if (!t)
        return;
    for (unsigned k = 0; k < STRIPES; k++) {
        struct inode *head;
        for (size_t at = 0; (head = mcfs_table_next(&t->stripes[k].names, &at));)
            destroy_list(t, head);
        destroy_list(t, t->stripes[k].nameless);
        mcfs_table_free(&t->stripes[k].names);
        pthread_mutex_destroy(&t->stripes[k].lock);
    }
    destroy(t, t->root);
    free(t);
}

struct inode *inode_root(struct inode_table *t)
{
    return t->root;
}

static struct inode *search(struct stripe *s, uint64_t hash, enum inode_kind kind,
                            struct mcfs_slice tenant, struct mcfs_slice key, uint64_t version)
{
    struct inode *i = first(s, hash, tenant, key);
    while (i && (i->kind != kind || i->version != version))
        i = i->next;
    return i;
}

struct inode *inode_find(struct inode_table *t, enum inode_kind kind, struct mcfs_slice tenant,
                         struct mcfs_slice key, uint64_t version)
{
    uint64_t hash = hash_name(tenant, key);
    struct stripe *s = stripe_of(t, hash);
    MCFS_LOCK_SCOPE(&s->lock);
    struct inode *i = search(s, hash, kind, tenant, key, version);
    if (i)
        i->refs++;
    return i;
}

struct inode *inode_get(struct inode_table *t, enum inode_kind kind, struct mcfs_slice tenant,
                        struct mcfs_slice key, uint64_t version,
                        void (*init)(struct inode *inode, void *arg), void *arg)
{
    uint64_t hash = hash_name(tenant, key);
    struct stripe *s = stripe_of(t, hash);
    MCFS_LOCK_SCOPE(&s->lock);
    struct inode *i = search(s, hash, kind, tenant, key, version);
    if (i) {
        i->refs++;
        return i;
    }
    i = make(t, kind, tenant, key);
    if (!i)
        return NULL;
    i->version = version;
    if (init)
        init(i, arg);
    if (link_inode(s, hash, i)) {
        destroy(t, i);
        return NULL;
    }
    return i;
}

struct inode *inode_make(struct inode_table *t, enum inode_kind kind, struct mcfs_slice tenant,
                         struct mcfs_slice key)
{
    struct inode *i = make(t, kind, tenant, key);
    if (!i)
        return NULL;
    uint64_t hash = inode_hash(i);
    struct stripe *s = stripe_of(t, hash);
    MCFS_LOCK_SCOPE(&s->lock);
    if (link_inode(s, hash, i)) {
        destroy(t, i);
        return NULL;
    }
    return i;
}

/* Whether two threads belong to one process. */
static bool same_process(int a, int b)
{
    char path[64];
    if (a == b)
        return true;
    snprintf(path, sizeof(path), "/proc/%d/task/%d", a, b);
    return access(path, F_OK) == 0;
}

struct inode *inode_find_writer(struct inode_table *t, struct mcfs_slice tenant,
                                struct mcfs_slice key, int pid)
{
    uint64_t hash = hash_name(tenant, key);
    struct stripe *s = stripe_of(t, hash);
    MCFS_LOCK_SCOPE(&s->lock);
    for (struct inode *i = first(s, hash, tenant, key); i; i = i->next) {
        if (i->kind == INODE_WRITER && !i->gone && ((i->dirty && !i->refused) || i->claimed) &&
            (!pid || same_process(pid, i->pid))) {
            i->refs++;
            return i;
        }
    }
    return NULL;
}

struct inode *inode_find_open_writer(struct inode_table *t, struct mcfs_slice tenant,
                                     struct mcfs_slice key, int pid, uint64_t version, bool *any)
{
    uint64_t hash = hash_name(tenant, key);
    struct stripe *s = stripe_of(t, hash);
    struct inode *found = NULL;
    bool open = false;
    MCFS_LOCK_SCOPE(&s->lock);
    for (struct inode *i = first(s, hash, tenant, key); i && !found; i = i->next) {
        if (i->kind != INODE_WRITER || i->gone || !i->opens)
            continue;
        open = true;
        if (i->writing && (i->published ? i->published : i->base_version) == version &&
            same_process(pid, i->pid))
            found = i;
    }
    if (found)
        found->refs++;
    if (any)
        *any = open;
    return found;
}

void inode_for_key(struct inode_table *t, struct mcfs_slice tenant, struct mcfs_slice key,
                   void (*fn)(struct inode *inode, void *arg), void *arg)
{
    uint64_t hash = hash_name(tenant, key);
    struct stripe *s = stripe_of(t, hash);
    MCFS_LOCK_SCOPE(&s->lock);
    for (struct inode *i = first(s, hash, tenant, key), *next; i; i = next) {
        next = i->next;
        fn(i, arg);
    }
}

struct inode_list {
    struct inode **v;
    size_t count, cap;
};

/* Takes a reference; without memory the inode is left out. */
static void list_add(struct inode_list *l, struct inode *i)
{
    if (l->count == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 64;
        struct inode **v = realloc(l->v, cap * sizeof(struct inode *));
        if (!v)
            return;
        l->v = v;
        l->cap = cap;
    }
    i->refs++;
    l->v[l->count++] = i;
}

void inode_for_all(struct inode_table *t, void (*fn)(struct inode *inode, void *arg), void *arg)
{
    for (unsigned k = 0; k < STRIPES; k++) {
        struct stripe *s = &t->stripes[k];
        struct inode_list l = {0};
        struct inode *head;
        pthread_mutex_lock(&s->lock);
        for (size_t at = 0; (head = mcfs_table_next(&s->names, &at));)
            for (; head; head = head->next)
                list_add(&l, head);
        pthread_mutex_unlock(&s->lock);
        for (size_t n = 0; n < l.count; n++) {
            fn(l.v[n], arg);
            inode_unref(t, l.v[n]);
        }
        free(l.v);
    }
}

/* Callers rename an inode only while they hold its own lock, so nobody else moves it here. */
int inode_rename(struct inode_table *t, struct inode *i, enum inode_kind kind,
                 struct mcfs_slice key, uint64_t version)
{
    struct inode_name *name = make_name(inode_tenant(i), key);
    if (!name)
        return -1;
    uint64_t from_hash = inode_hash(i), to_hash = hash_name(name->tenant, name->key);
    struct stripe *from = stripe_of(t, from_hash), *to = stripe_of(t, to_hash);
    mcfs_lock_two(&from->lock, &to->lock);
    take_out(from, from_hash, i);
    name->older = atomic_load(&i->name);
    atomic_store(&i->name, name);
    atomic_store(&i->stripe, (unsigned)(to_hash >> 58));
    i->kind = kind;
    i->version = version;
    int rc = link_inode(to, to_hash, i);
    if (rc)
        add_nameless(to, i);
    mcfs_unlock_two(&from->lock, &to->lock);
    return rc;
}

void inode_unlink(struct inode_table *t, struct inode *i)
{
    struct stripe *s = lock_stripe(t, i);
    if (i->linked) {
        take_out(s, inode_hash(i), i);
        add_nameless(s, i);
    }
    pthread_mutex_unlock(&s->lock);
}

/* Drops `kernel` and `daemon` references and the inode with its last. */
static void drop(struct inode_table *t, struct inode *i, uint64_t kernel, uint32_t daemon)
{
    if (i->kind == INODE_ROOT)
        return;
    struct stripe *s = lock_stripe(t, i);
    i->kernel_refs -= MCFS_MIN(kernel, i->kernel_refs);
    i->refs -= daemon;
    bool last = i->kernel_refs == 0 && i->refs == 0;
    if (last)
        take_out(s, inode_hash(i), i);
    pthread_mutex_unlock(&s->lock);
    if (last)
        destroy(t, i);
}

void inode_give_to_kernel(struct inode_table *t, struct inode *i)
{
    if (i->kind == INODE_ROOT)
        return;
    struct stripe *s = lock_stripe(t, i);
    i->kernel_refs++;
    i->refs--;
    pthread_mutex_unlock(&s->lock);
}

void inode_forget(struct inode_table *t, struct inode *i, uint64_t count)
{
    drop(t, i, count, 0);
}

struct inode *inode_ref(struct inode_table *t, struct inode *i)
{
    if (i->kind != INODE_ROOT) {
        struct stripe *s = lock_stripe(t, i);
        i->refs++;
        pthread_mutex_unlock(&s->lock);
    }
    return i;
}

void inode_unref(struct inode_table *t, struct inode *i)
{
    if (i)
        drop(t, i, 0, 1);
}

uint64_t inode_count(struct inode_table *t)
{
    return atomic_load(&t->count);
}
