/* SPDX-License-Identifier: Apache-2.0 */
/* What lies in the directory of a store: files by bucket id, and strangers. */
#include "backends/bucket/bucket_recover.h"

#include "common/cleanup.h"

#include <fcntl.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <sys/stat.h>

/* Neither ours to read nor to set aside. */
static bool is_left_alone(const char *name)
{
    static const char *const known[] = {".*",      "lock",      "lost+found", "staging",
                                        "node_id", "snapshots", "master*",    "format"};
    if (*name >= '0' && *name <= '9') /* nearly all of them: as no pattern does */
        return false;
    for (size_t i = 0; i < MCFS_ARRAY_SIZE(known); i++)
        if (fnmatch(known[i], name, 0) == 0)
            return true;
    return false;
}

/* "<decimal id>.<suffix>": where the suffix begins, NULL when it is something else. */
static const char *parse_id(const char *name, uint64_t *id)
{
    const char *p = name;
    for (*id = 0; *p >= '0' && *p <= '9'; p++)
        if (*id > BUCKET_ID_MAX / 10)
            return NULL;
        else
            *id = *id * 10 + (uint64_t)(*p - '0');
    if (p == name || *p != '.' || *id >= BUCKET_ID_MAX || (name[0] == '0' && p > name + 1))
        return NULL;
    return p + 1;
}

static unsigned part_of(const char *suffix)
{
    static const struct {
        const char *suffix;
        unsigned part;
    } parts[] = {
        {"bucket", HAS_DATA}, {"meta", HAS_META}, {"journal", HAS_JOURNAL}, {"sum", HAS_SUM}};
    for (size_t i = 0; i < MCFS_ARRAY_SIZE(parts); i++)
        if (strcmp(suffix, parts[i].suffix) == 0)
            return parts[i].part;
    return 0;
}

static int add_part(struct recovery *r, uint64_t id, unsigned part)
{
    if (r->count == r->cap) {
        size_t cap = r->cap ? r->cap * 2 : 256;
        struct found *list = realloc(r->list, cap * sizeof(*list));
        if (!list)
            return -1;
        r->list = list;
        r->cap = cap;
    }
    r->list[r->count++] = (struct found){.id = id, .parts = part};
    return 0;
}

static int add_stranger(struct recovery *r, const char *name)
{
    if (r->stranger_count == r->stranger_cap) {
        size_t cap = r->stranger_cap ? r->stranger_cap * 2 : 16;
        char **list = realloc(r->strangers, cap * sizeof(*list));
        if (!list)
            return -1;
        r->strangers = list;
        r->stranger_cap = cap;
    }
    char *copy = strdup(name);
    if (!copy)
        return -1;
    r->strangers[r->stranger_count++] = copy;
    return 0;
}

static bool is_file(int dir_fd, const struct dirent *e)
{
    struct stat st;
    if (e->d_type != DT_UNKNOWN)
        return e->d_type == DT_REG;
    return fstatat(dir_fd, e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode);
}

static int take_name(struct recovery *r, int dir_fd, const struct dirent *e)
{
    uint64_t id;
    if (is_left_alone(e->d_name))
        return 0;
    const char *suffix = parse_id(e->d_name, &id);
    if (!suffix || !is_file(dir_fd, e))
        return add_stranger(r, e->d_name);
    if (strcmp(suffix, "meta.tmp") == 0 || strcmp(suffix, "sum.tmp") == 0) {
        /* Ours, never finished; whoever only looks leaves it. */
        if (!r->s->config.read_only)
            unlinkat(dir_fd, e->d_name, 0);
        return 0;
    }
    unsigned part = part_of(suffix);
    return part ? add_part(r, id, part) : add_stranger(r, e->d_name);
}

static int by_id(const void *a, const void *b)
{
    uint64_t x = ((const struct found *)a)->id, y = ((const struct found *)b)->id;
    return (x > y) - (x < y);
}

int recovery_list(struct recovery *r, struct mcfs_error *err)
{
    _cleanup_dir_ DIR *dir = opendir(r->s->dir);
    struct dirent *e;
    if (!dir)
        return mcfs_fail_errno(err, errno, "%s", r->s->dir);
    while ((errno = 0, e = readdir(dir)))
        if (take_name(r, dirfd(dir), e))
            return mcfs_fail_errno(err, ENOMEM, "%s", r->s->dir);
    if (errno)
        return mcfs_fail_errno(err, errno, "%s", r->s->dir);
    if (r->count == 0)
        return 0;
    qsort(r->list, r->count, sizeof(*r->list), by_id);
    size_t kept = 0;
    for (size_t i = 1; i < r->count; i++) {
        if (r->list[i].id == r->list[kept].id)
            r->list[kept].parts |= r->list[i].parts;
        else
            r->list[++kept] = r->list[i];
    }
    r->count = kept + 1;
    return 0;
}
