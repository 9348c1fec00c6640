/* SPDX-License-Identifier: Apache-2.0 */
/* What happens to objects that are stored: removal, another name, other attributes. */
#include "backends/offset/offset_store.h"

#include "backends/offset/offset.h"
#include "backends/offset/offset_record.h"
#include "common/cleanup.h"
#include "common/file.h"

/* The caller holds the store's lock. */
static struct offset_entry *find(struct offset_store *s, struct mcfs_slice key, uint64_t version)
{
    return offset_index_find(offset_stripe(s, key), key, version);
}

static int append(struct offset_store *s, const struct offset_log_record *r, struct mcfs_error *err)
{
    _cleanup_buf_ struct mcfs_buf record = MCFS_BUF_INIT;
    offset_log_put_record(&record, r);
    return offset_journal_append(s, &record, err);
}

/* ---- removal ---- */

static int remove_one(struct offset_store *s, struct mcfs_backend_name *n, struct mcfs_error *err)
{
    _cleanup_buf_ struct mcfs_buf key = MCFS_BUF_INIT;
    if (storage_key(n->tenant, n->key, &key, err))
        return -1;
    MCFS_LOCK_SCOPE(&s->lock);
    struct offset_entry *e = find(s, mcfs_slice(key.data, key.len), n->version);
    if (!e)
        return 0;
    struct offset_log_record r = {.type = OFFSET_LOG_DELETE, .seq = e->seq};
    if (append(s, &r, err))
        return -1;
    offset_index_kill(s, e);
    atomic_fetch_add_explicit(&s->removes, 1, memory_order_relaxed);
    return 0;
}

size_t offset_store_remove(struct mcfs_backend *b, struct mcfs_backend_name *names, size_t n)
{
    struct offset_store *s = (struct offset_store *)b;
    size_t failed = 0;
    for (size_t i = 0; i < n; i++) {
        names[i].err = (struct mcfs_error)MCFS_ERROR_INIT;
        failed += remove_one(s, &names[i], &names[i].err) != 0;
    }
    return failed;
}

/* ---- another name ---- */

/* Whether an eviction holds it back, which it cannot begin while the store's lock is held. */
static bool is_leaving(struct offset_store *s, const struct offset_entry *e)
{
    MCFS_LOCK_SCOPE(&offset_stripe(s, offset_entry_key(e))->lock);
    return e->evict.leaving;
}

struct rename {
    struct mcfs_slice from, to; /* storage keys */
    uint64_t from_version, to_version;
};

/* Finds what is to get another name; 1: there it is, 0: it has it already, -1.  The caller holds
 * the store's lock. */
static int find_source(struct offset_store *s, const struct rename *r, struct offset_entry **e,
                       struct mcfs_error *err)
{
    struct offset_entry *there = find(s, r->to, r->to_version);
    *e = find(s, r->from, r->from_version);
    if (!*e || is_leaving(s, *e) || *e == there)
        return there ? 0 : storage_gone(r->from, err);
    if (there)
        return mcfs_fail(err, MCFS_OBJECT_ALREADY_EXISTS, "%.*s: this version is stored already",
                         (int)MCFS_MIN(r->to.len, 160), r->to.data);
    return 1;
}

/* Its record has as much room for the new name as for the old one: the head is written by the next
 * checkpoint, the journal has the name until then.  Returns 1 when it has not. */
static int rename_in_place(struct offset_store *s, const struct rename *r, struct mcfs_error *err)
{
    struct offset_entry *e;
    _cleanup_free_ char *key = malloc(r->to.len);
    if (!key)
        return mcfs_fail_errno(err, ENOMEM, "index");
    MCFS_LOCK_SCOPE(&s->lock);
    int found = find_source(s, r, &e, err);
    if (found <= 0)
        return found;
    if (offset_record_value_at((uint32_t)offset_entry_disk_key(e).len) !=
        offset_record_value_at((uint32_t)r->to.len))
        return 1;
    /* A number of its own makes it the newest of its new name, for Mooncake, too. */
    struct offset_log_record record = {.type = OFFSET_LOG_REKEY,
                                       .seq = e->seq,
                                       .new_seq = s->insert_seq,
                                       .version = r->to_version,
                                       .key = r->to};
    if (append(s, &record, err))
        return -1;
    s->insert_seq++;
    offset_index_del(s, e);
    memcpy(key, r->to.data, r->to.len);
    char *old = e->key;
    e->key = MCFS_STEAL(key);
    e->key_len = (uint32_t)r->to.len;
    e->version = r->to_version;
    e->seq = record.new_seq;
    e->bare = false;
    e->head_stale = true;
    free(old);
    /* Out of memory in the middle: the journal has the truth, and the next start finds it. */
    return offset_index_add(s, e) ? mcfs_fail_errno(err, ENOMEM, "index") : 0;
}

/* An entry for the copy, with room for it. */
static struct offset_entry *prepare_copy(struct offset_store *s, const struct rename *r,
                                         const struct offset_entry *e, struct mcfs_error *err)
{
    struct offset_entry *copy = offset_entry_new(r->to);
    if (!copy) {
        mcfs_fail_errno(err, ENOMEM, "index");
        return NULL;
    }
    copy->version = r->to_version;
    copy->size = e->size;
    copy->crc32c = e->crc32c;
    copy->has_crc = e->has_crc;
    copy->record_crc = e->has_crc && !s->config.offset_without_record_crc;
    copy->data_type = e->data_type;
    copy->checked = atomic_load(&e->checked);
    if (offset_take_room(s, copy, err)) {
        offset_entry_free(copy);
        return NULL;
    }
    return copy;
}

/* The record is written anew, and takes the old one's place in the journal with one record. */
static int publish_copy(struct offset_store *s, const struct rename *r, struct offset_entry *old,
                        struct offset_entry *copy, struct mcfs_error *err)
{
    struct offset_entry *e;
    MCFS_LOCK_SCOPE(&s->lock);
    int found = find_source(s, r, &e, err);
    if (found <= 0)
        return found < 0 ? -1 : 1;
    if (e != old) { /* removed and stored again meanwhile */
        return storage_gone(r->from, err);
    }
    copy->attr = e->attr;
    struct offset_log_record record = offset_entry_record(copy);
    record.replaces = e->seq;
    if (offset_index_add(s, copy))
        return mcfs_fail_errno(err, ENOMEM, "index");
    if (append(s, &record, err)) {
        offset_index_del(s, copy);
        return -1;
    }
    s->data_unflushed = true;
    offset_list_del(&s->in_flight, copy);
    offset_list_add(&s->all, copy);
    offset_index_kill(s, e);
    return 0;
}

static int rename_by_copy(struct offset_store *s, const struct rename *r, struct mcfs_error *err)
{
    struct offset_entry *e;
    uint64_t value;
    {
        MCFS_LOCK_SCOPE(&s->lock);
        int found = find_source(s, r, &e, err);
        if (found <= 0)
            return found;
        value = offset_entry_value(e);
        atomic_fetch_add(&e->refs, 1);
    }
    int rc = -1;
    struct offset_entry *copy = prepare_copy(s, r, e, err);
    if (copy) {
        rc = offset_write_head(s, copy, err);
        if (rc == 0 &&
            mcfs_copy_range(s->data_fd, value, s->data_fd, offset_entry_value(copy), e->size))
            rc = mcfs_fail_errno(err, errno, "%s/" OFFSET_DATA, s->dir);
        if (rc == 0)
            rc = publish_copy(s, r, e, copy, err);
        if (rc)
            offset_give_up(s, copy);
    }
    atomic_fetch_sub(&e->refs, 1);
    return rc > 0 ? 0 : rc;
}

int offset_store_rekey(struct mcfs_backend *b, struct mcfs_slice tenant, struct mcfs_slice from,
                       uint64_t from_version, struct mcfs_slice to, uint64_t to_version,
                       struct mcfs_error *err)
{
    struct offset_store *s = (struct offset_store *)b;
    _cleanup_buf_ struct mcfs_buf old = MCFS_BUF_INIT, new = MCFS_BUF_INIT;
    if (storage_key(tenant, from, &old, err) || storage_key(tenant, to, &new, err))
        return -1;
    struct rename r = {mcfs_slice(old.data, old.len), mcfs_slice(new.data, new.len), from_version,
                       to_version};
    int rc = rename_in_place(s, &r, err);
    return rc > 0 ? rename_by_copy(s, &r, err) : rc;
}

/* ---- other attributes ---- */

int offset_store_set_attr(struct mcfs_backend *b, struct mcfs_slice tenant, struct mcfs_slice key,
                          uint64_t version, const struct mcfs_attr *attr, struct mcfs_error *err)
{
    struct offset_store *s = (struct offset_store *)b;
    _cleanup_buf_ struct mcfs_buf name = MCFS_BUF_INIT;
    if (storage_key(tenant, key, &name, err))
        return -1;
    MCFS_LOCK_SCOPE(&s->lock);
    struct offset_entry *e = find(s, mcfs_slice(name.data, name.len), version);
    if (!e)
        return storage_gone(key, err);
    struct offset_log_record r = {.type = OFFSET_LOG_ATTR, .seq = e->seq, .attr = *attr};
    if (append(s, &r, err))
        return -1;
    e->attr = *attr;
    return 0;
}
