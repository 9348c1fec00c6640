/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/options.h"

#include "backends/backends.h"
#include "common/cleanup.h"
#include "common/crc32c.h"
#include "fs/node/state_dir.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#define SNAPSHOT_SOURCE "snapshot:"
#define OFFLOAD_SOURCE "offload:"
#define AT(field) offsetof(struct mount_options, field)

static struct mcfs_flag table[] = {
    {"tenant", MCFS_FLAG_STRING, AT(tenant), NULL, NULL,
     "confine the mount to one tenant; keys/ shows 'default' otherwise", 0},
    {"storage_path", MCFS_FLAG_STRING, AT(storage_path), NULL, "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH",
     "state directory of a cluster's node", 0},
    {"backend", MCFS_FLAG_STRING, AT(backend), NULL, "MOONCAKE_OFFLOAD_STORAGE_BACKEND_DESCRIPTOR",
     "layout of the store: bucket_storage_backend, file_per_key_storage_backend, "
     "offset_allocator_storage_backend; none: buckets, or with offload: what lies there",
     0},
    {"offset_persist", MCFS_FLAG_STRING, AT(offset_persist), "relaxed",
     "MOONCAKE_OFFSET_PERSIST_MODE",
     "offset allocator: what a closed file survives: nothing (disabled), the daemon's death "
     "(relaxed), power loss (strict)",
     0},
    {"offset_checkpoint", MCFS_FLAG_DURATION, AT(offset_checkpoint_ms), "60s",
     "MOONCAKE_OFFSET_PERSIST_INTERVAL_SECONDS",
     "offset allocator: time between checkpoints, from which Mooncake can go on", 1000},
    {"offset_nodes_max", MCFS_FLAG_U32, AT(offset_nodes_max), "0",
     "MOONCAKE_OFFSET_MAX_CAPACITY_NODES",
     "offset allocator: most ranges of the data file, free ones included; 0: 16777216", 0},
    {"offset_record_crc", MCFS_FLAG_BOOL, AT(offset_record_crc), "true",
     "MOONCAKE_OFFSET_RECORD_CRC", "offset allocator: records carry checksums for Mooncake, too",
     0},
    {"fsdir", MCFS_FLAG_STRING, AT(fsdir), "file_per_key_dir", "MOONCAKE_OFFLOAD_FSDIR",
     "the folder of Mooncake's own files in the file-per-key layout", 0},
    {"bucket_size_limit", MCFS_FLAG_SIZE, AT(bucket_size_limit), "256M",
     "MOONCAKE_OFFLOAD_BUCKET_SIZE_LIMIT_BYTES", "bytes after which a bucket is sealed", 0},
    {"bucket_keys_limit", MCFS_FLAG_U64, AT(bucket_keys_limit), "500",
     "MOONCAKE_OFFLOAD_BUCKET_KEYS_LIMIT", "objects after which a bucket is sealed", 0},
    {"capacity", MCFS_FLAG_SIZE, AT(capacity), "0", "MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES",
     "most bytes stored; 0: what the disk holds", 0},
    {"single_object_min", MCFS_FLAG_SIZE, AT(single_object_min), "1M", NULL,
     "size from which an object is a file of its own", 0},
    {"flush_interval", MCFS_FLAG_DURATION, AT(flush_interval_ms), "5s", NULL,
     "time after which what was closed survives power loss", 1000},
    {"compact_rate", MCFS_FLAG_SIZE, AT(compact_rate), "32M", NULL,
     "most bytes a second that are moved out of buckets of which little is left; 0: none", 0},
    {"io_engine", MCFS_FLAG_STRING, AT(io_engine), "auto", "MOONCAKE_OFFLOAD_USE_URING",
     "how the store reads and writes batches: io_uring where the kernel allows it (auto), the same "
     "and a warning where it does not (uring), plain system calls (plain)",
     0},
    {"eviction", MCFS_FLAG_STRING, AT(eviction), "none", "MOONCAKE_OFFLOAD_BUCKET_EVICTION_POLICY",
     "what goes when the store is full: nothing (none), what was stored first (fifo), what was "
     "opened longest ago (lru)",
     0},
    {"eviction_max_bytes", MCFS_FLAG_SIZE, AT(eviction_max_bytes), "0",
     "MOONCAKE_OFFLOAD_BUCKET_MAX_TOTAL_SIZE", "most bytes of values; 0: no limit but capacity", 0},
    {"eviction_max_physical", MCFS_FLAG_SIZE, AT(eviction_max_physical), "0",
     "MOONCAKE_OFFLOAD_BUCKET_MAX_PHYSICAL_BYTES",
     "most bytes that files may take, as capacity; the lower one counts", 0},
    {"eviction_watermarks", MCFS_FLAG_BOOL, AT(eviction_watermarks), "true",
     "MOONCAKE_OFFLOAD_ENABLE_DISK_WATERMARK_EVICTION",
     "evict between the watermarks; false: only for what does not fit", 0},
    {"eviction_high", MCFS_FLAG_DOUBLE, AT(eviction_high), "0.90",
     "MOONCAKE_OFFLOAD_DISK_EVICTION_HIGH_WATERMARK_RATIO",
     "share of what may be stored above which eviction begins", 0},
    {"eviction_low", MCFS_FLAG_DOUBLE, AT(eviction_low), "0.80",
     "MOONCAKE_OFFLOAD_DISK_EVICTION_LOW_WATERMARK_RATIO", "share at which it ends", 0},
    {"refresh", MCFS_FLAG_DURATION, AT(refresh_ms), "5s", NULL,
     "offload: how often to look whether the directory was changed; 0: never", 1000},
    {"listen", MCFS_FLAG_STRING, AT(listen), NULL, NULL,
     "HOST:PORT on which peers read from this node; beyond loopback only with auth_key_file", 0},
    {"auth_key_file", MCFS_FLAG_STRING, AT(auth_key_file), NULL, NULL,
     "file of the key that is proven over TCP, and of those that peers may prove", 0},
    {"master_flags", MCFS_FLAG_STRING, AT(master_flags), NULL, NULL,
     "further flags of the standalone master, separated by blanks", 0},
    {"rpc_timeout", MCFS_FLAG_DURATION, AT(rpc_timeout_ms), "10s", NULL,
     "time a request may wait for the master", 1000},
    {"lease_wait", MCFS_FLAG_DURATION, AT(lease_wait_ms), "10s", NULL,
     "time to wait for another mount's lease before EBUSY", 1000},
    {"attr_timeout", MCFS_FLAG_DURATION, AT(attr_timeout_ms), "1h", NULL,
     "caches attributes and names no longer than this (the lease is the limit)", 1000},
    {"passthrough", MCFS_FLAG_STRING, AT(passthrough), "auto", NULL,
     "files whose bytes the kernel reads and writes by itself: auto, off", 0},
    {"opens", MCFS_FLAG_STRING, AT(opens), "auto", NULL,
     "on a read-only mount: files are opened by the kernel alone (auto), or with a request each, "
     "so "
     "that large ones pass through (all)",
     0},
    {"verify", MCFS_FLAG_STRING, AT(verify), "scrub", NULL,
     "when large objects are checked after a restart: soon after they are opened (scrub), or "
     "before (strict)",
     0},
    {"temp_pattern", MCFS_FLAG_STRING, AT(temp_pattern), NULL, NULL,
     "further names that stay private until renamed, separated by ':'", 0},
    {"cluster", MCFS_FLAG_STRING, AT(cluster), NULL, NULL,
     "snapshot: the cluster whose snapshots are meant, where there are several", 0},
    {"ro", MCFS_FLAG_BOOL, AT(ro), "false", NULL, "read-only", 0},
    {"allow_other", MCFS_FLAG_BOOL, AT(allow_other), "false", NULL, "other users may enter", 0},
    {"allow_root", MCFS_FLAG_BOOL, AT(allow_root), "false", NULL, "root may enter", 0},
    {"default_permissions", MCFS_FLAG_BOOL, AT(default_permissions), "true", NULL,
     "the kernel checks modes", 0},
    {"uid", MCFS_FLAG_STRING, AT(uid_text), NULL, NULL, "owner of everything", 0},
    {"gid", MCFS_FLAG_STRING, AT(gid_text), NULL, NULL, "group of everything", 0},
    {"umask", MCFS_FLAG_STRING, AT(umask_text), NULL, NULL, "permission bits taken away", 0},
    {"threads", MCFS_FLAG_U32, AT(threads), "0", NULL, "most idle worker threads; 0: 10", 0},
    {"log_file", MCFS_FLAG_STRING, AT(log_file), NULL, NULL,
     "log to this file instead of <state>/mooncakefs.log", 0},
    {"verbose", MCFS_FLAG_BOOL, AT(verbose), "false", NULL, "log more", 0},
    {"fsname", MCFS_FLAG_STRING, AT(fsname), NULL, NULL, "name shown by df", 0},
    MCFS_FLAG_END};

/* Words of mount(8) and fstab(5) that concern others. */
static bool is_mount_word(const char *word, size_t len)
{
    static const char *const words[] = {
        "rw",           "dev",        "nodev",      "suid",        "nosuid",
        "exec",         "noexec",     "auto",       "noauto",      "user",
        "nouser",       "users",      "owner",      "group",       "async",
        "sync",         "dirsync",    "atime",      "noatime",     "diratime",
        "nodiratime",   "relatime",   "norelatime", "strictatime", "nostrictatime",
        "lazytime",     "nolazytime", "_netdev",    "nofail",      "defaults",
        "auto_unmount", "nonempty",   "big_writes"};
    if (len > 2 && memcmp(word, "x-", 2) == 0)
        return true;
    for (size_t i = 0; i < MCFS_ARRAY_SIZE(words); i++)
        if (strlen(words[i]) == len && memcmp(words[i], word, len) == 0)
            return true;
    return false;
}

/* Takes "a,b=c,d=e\,f" apart: a backslash keeps a comma. */
static int parse_list(struct mount_options *o, const char *list, struct mcfs_error *err)
{
    _cleanup_free_ char *word = malloc(strlen(list) + 1);
    if (!word)
        return mcfs_fail_errno(err, ENOMEM, "-o");
    while (*list) {
        size_t n = 0;
        for (; *list && *list != ','; list++) {
            if (list[0] == '\\' && list[1])
                list++;
            word[n++] = *list;
        }
        word[n] = 0;
        if (*list == ',')
            list++;
        if (n == 0)
            continue;
        char *equals = strchr(word, '=');
        size_t name_len = equals ? (size_t)(equals - word) : n;
        if (is_mount_word(word, name_len))
            continue;
        if (mcfs_flags_set(table, o, word, name_len, equals ? equals + 1 : NULL, err))
            return -1;
    }
    return 0;
}

/* How a value came to be: the name of the option, or of the variable when that says the same. */
static const char *origin(const char *name, const char *value, char *out, size_t cap)
{
    const struct mcfs_flag *f = mcfs_flags_find(table, name, strlen(name));
    const char *text = f->env ? getenv(f->env) : NULL;
    if (text && (!value || strcmp(text, value) == 0))
        snprintf(out, cap, "environment variable %s", f->env);
    else
        snprintf(out, cap, "option '%s'", name);
    return out;
}

/* The variable, when the value is what it says, be it a number or not. */
static const char *ratio_origin(const char *name, double value, char *out, size_t cap)
{
    const struct mcfs_flag *f = mcfs_flags_find(table, name, strlen(name));
    const char *text = getenv(f->env);
    double said = text ? strtod(text, NULL) : 0;
    bool same = said == value || (isnan(said) && isnan(value));
    return origin(name, text && same ? text : "", out, cap);
}

/* Mooncake's stores are told about eviction by variables of their own; the table has those of its
 * buckets. */
static void use_variables_of(const char *backend)
{
    static const struct {
        const char *backend, *option, *variable;
    } own[] = {
        {"offset_allocator_storage_backend", "eviction", "MOONCAKE_OFFSET_EVICTION_POLICY"},
        {"offset_allocator_storage_backend", "eviction_high",
         "MOONCAKE_OFFSET_EVICTION_HIGH_RATIO"},
        {"offset_allocator_storage_backend", "eviction_low", "MOONCAKE_OFFSET_EVICTION_LOW_RATIO"},
        {"file_per_key_storage_backend", "eviction", "MOONCAKE_OFFLOAD_ENABLE_EVICTION"},
    };
    for (size_t i = 0; i < MCFS_ARRAY_SIZE(own); i++)
        if (strcmp(own[i].backend, backend) == 0)
            for (struct mcfs_flag *f = table; f->name; f++)
                if (strcmp(f->name, own[i].option) == 0)
                    f->env = own[i].variable;
}

static int check_eviction(struct mount_options *o, struct mcfs_error *err)
{
    static const char *const policies[] = {"none", "fifo", "lru"};
    char high[128], low[128];
    bool known = false, on;
    /* The file-per-key store's variable only says whether. */
    if (mcfs_parse_bool(o->eviction, &on) == 0) {
        char *policy = strdup(on ? "fifo" : "none");
        if (!policy)
            return mcfs_fail_errno(err, ENOMEM, "options");
        free(o->eviction);
        o->eviction = policy;
    }
    for (size_t i = 0; i < MCFS_ARRAY_SIZE(policies); i++)
        known |= strcmp(o->eviction, policies[i]) == 0;
    if (!known)
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "%s: '%s' is not none, fifo or lru",
                         origin("eviction", o->eviction, high, sizeof(high)), o->eviction);
    ratio_origin("eviction_high", o->eviction_high, high, sizeof(high));
    ratio_origin("eviction_low", o->eviction_low, low, sizeof(low));
    if (!(o->eviction_high > 0 && o->eviction_high <= 1))
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "%s: %g is not a share above 0 and up to 1",
                         high, o->eviction_high);
    if (!(o->eviction_low >= 0 && o->eviction_low < o->eviction_high))
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "%s: %g is not a share below %s, which is %g",
                         low, o->eviction_low, high, o->eviction_high);
    return 0;
}

static int check_engine(struct mount_options *o, struct mcfs_error *err)
{
    static const char *const engines[] = {"auto", "uring", "plain"};
    char where[128];
    bool on;
    /* The variable only says whether. */
    if (mcfs_parse_bool(o->io_engine, &on) == 0) {
        char *engine = strdup(on ? "uring" : "plain");
        if (!engine)
            return mcfs_fail_errno(err, ENOMEM, "options");
        free(o->io_engine);
        o->io_engine = engine;
        return 0;
    }
    for (size_t i = 0; i < MCFS_ARRAY_SIZE(engines); i++)
        if (strcmp(o->io_engine, engines[i]) == 0)
            return 0;
    return mcfs_fail(err, MCFS_INVALID_PARAMS, "%s: '%s' is not auto, uring or plain",
                     origin("io_engine", o->io_engine, where, sizeof(where)), o->io_engine);
}

static int parse_numbers(struct mount_options *o, struct mcfs_error *err)
{
    uint64_t v;
    if (o->uid_text) {
        if (mcfs_parse_u64(o->uid_text, &v) || v > UINT32_MAX)
            return mcfs_fail(err, MCFS_INVALID_PARAMS, "option 'uid': '%s' is not a number",
                             o->uid_text);
        o->uid = (uint32_t)v;
        o->has_uid = true;
    }
    if (o->gid_text) {
        if (mcfs_parse_u64(o->gid_text, &v) || v > UINT32_MAX)
            return mcfs_fail(err, MCFS_INVALID_PARAMS, "option 'gid': '%s' is not a number",
                             o->gid_text);
        o->gid = (uint32_t)v;
        o->has_gid = true;
    }
    if (o->umask_text) {
        char *end;
        unsigned long mask = strtoul(o->umask_text, &end, 8);
        if (*end || mask > 0777)
            return mcfs_fail(err, MCFS_INVALID_PARAMS, "option 'umask': '%s' is not an octal mode",
                             o->umask_text);
        o->umask = (uint32_t)mask;
        o->has_umask = true;
    }
    if (strcmp(o->passthrough, "auto") != 0 && strcmp(o->passthrough, "off") != 0)
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "option 'passthrough': '%s' is not auto or off",
                         o->passthrough);
    if (strcmp(o->opens, "auto") != 0 && strcmp(o->opens, "all") != 0)
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "option 'opens': '%s' is not auto or all",
                         o->opens);
    if (strcmp(o->verify, "scrub") != 0 && strcmp(o->verify, "strict") != 0)
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "option 'verify': '%s' is not scrub or strict",
                         o->verify);
    return check_engine(o, err) ? -1 : check_eviction(o, err);
}

/* Everything but what the options mean together; up to two words that are none. */
static int parse_words(struct mount_options *o, int argc, char **argv, char *words[2], int *count,
                       struct mcfs_error *err)
{
    if (mcfs_flags_init(table, o, err))
        return -1;
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i];
        if (strcmp(a, "-f") == 0 || strcmp(a, "--foreground") == 0) {
            o->foreground = true;
        } else if (strcmp(a, "-d") == 0 || strcmp(a, "--debug") == 0) {
            o->foreground = o->debug = o->verbose = true;
        } else if (strcmp(a, "-h") == 0 || strcmp(a, "--help") == 0) {
            o->help = true;
        } else if (strcmp(a, "-V") == 0 || strcmp(a, "--version") == 0) {
            o->version = true;
        } else if (strcmp(a, "--recover") == 0) {
            o->recover = true;
        } else if (strcmp(a, "-s") == 0 || strcmp(a, "-n") == 0 || strcmp(a, "-v") == 0) {
            continue; /* mount(8) passes these on */
        } else if (strncmp(a, "-o", 2) == 0) {
            const char *list = a[2] ? a + 2 : ++i < argc ? argv[i] : NULL;
            if (!list)
                return mcfs_fail(err, MCFS_INVALID_PARAMS, "-o needs a list of options");
            if (parse_list(o, list, err))
                return -1;
        } else if (a[0] == '-') {
            return mcfs_fail(err, MCFS_INVALID_PARAMS, "unknown option '%s'; see -h", a);
        } else if (*count == 2) {
            return mcfs_fail(err, MCFS_INVALID_PARAMS,
                             "'%s' is one word too many: mooncakefs [SOURCE] MOUNTPOINT", a);
        } else {
            words[(*count)++] = argv[i];
        }
    }
    return 0;
}

int mount_options_parse(struct mount_options *o, int argc, char **argv, struct mcfs_error *err)
{
    char *words[2] = {NULL, NULL};
    int count = 0;
    memset(o, 0, sizeof(*o));
    /* Which store it is decides which variables count. */
    int rc = parse_words(o, argc, argv, words, &count, &(struct mcfs_error){0});
    use_variables_of(rc == 0 && o->backend ? o->backend : "bucket_storage_backend");
    mount_options_free(o);
    memset(o, 0, sizeof(*o));
    count = 0;
    if (parse_words(o, argc, argv, words, &count, err))
        return -1;
    if (o->help || o->version)
        return 0;
    if (count == 0)
        return mcfs_fail(err, MCFS_INVALID_PARAMS,
                         "no mount point: mooncakefs [SOURCE] MOUNTPOINT");
    o->source = count == 2 ? strdup(words[0]) : NULL;
    o->mountpoint = strdup(words[count - 1]);
    o->ro |= count == 2 && (strncmp(words[0], SNAPSHOT_SOURCE, strlen(SNAPSHOT_SOURCE)) == 0 ||
                            strncmp(words[0], OFFLOAD_SOURCE, strlen(OFFLOAD_SOURCE)) == 0);
    return parse_numbers(o, err);
}

uint64_t mount_options_capacity(const struct mount_options *o)
{
    uint64_t most = o->eviction_max_physical;
    return most && (!o->capacity || most < o->capacity) ? most : o->capacity;
}

void mount_options_free(struct mount_options *o)
{
    mcfs_flags_free(table, o);
    free(o->source);
    free(o->mountpoint);
}

void mount_options_help(void)
{
    printf(
        "usage: mooncakefs [SOURCE] MOUNTPOINT [-f] [-d] [-o OPTION[,OPTION...]]\n\n"
        "SOURCE is one of\n"
        "  (none)         a standalone node in the default state directory\n"
        "  local:DIR      a standalone node in DIR\n"
        "  HOST:PORT      a node of the cluster whose master listens there\n"
        "  unix:PATH      the same, over a Unix socket\n"
        "  snapshot:DIR   read-only: the snapshots of a store there, without its master\n"
        "  snapshot:s3://BUCKET/PREFIX\n"
        "                 the same in S3\n"
        "  offload:DIR    read-only: the objects in an offload directory, also one of Mooncake's,\n"
        "                 without a master\n\n"
        "  -f             stay in the foreground\n"
        "  -d             the same, and show every FUSE request\n"
        "  --recover      only clean the mount point that a killed mooncakefs left\n"
        "  -h, -V         this help, the version\n\nOPTIONs, and their defaults:\n");
    mcfs_flags_help(table, stdout);
}

/* A view's state is kept by where it looks, for the next time. */
static void view_state(const struct mount_options *o, const char *place, bool elsewhere,
                       struct source *out)
{
    char *base = state_dir_default();
    uint32_t sum = mcfs_crc32c(0, place, strlen(place));
    if (o->storage_path && !elsewhere)
        out->state_dir = strdup(o->storage_path);
    else if (asprintf(&out->state_dir, "%s/views/%08x", base, sum) < 0)
        out->state_dir = NULL;
    free(base);
}

static int parse_offload_source(const struct mount_options *o, const char *place,
                                struct source *out, struct mcfs_error *err)
{
    if (!*place)
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "'%s' names no directory", o->source);
    out->offload = mcfs_backend_dir(place, err);
    if (!out->offload)
        return -1;
    /* Mooncake's variable for it may name the very directory that is only to be looked at. */
    _cleanup_free_ char *state = o->storage_path ? realpath(o->storage_path, NULL) : NULL;
    view_state(o, out->offload, state && strcmp(state, out->offload) == 0, out);
    return out->state_dir ? 0 : mcfs_fail_errno(err, ENOMEM, "%s", o->source);
}

static int parse_snapshot_source(const struct mount_options *o, const char *place,
                                 struct source *out, struct mcfs_error *err)
{
    if (!*place)
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "'%s' names no place", o->source);
    bool s3 = strncmp(place, "s3://", 5) == 0;
    char *real = s3 ? NULL : realpath(place, NULL);
    out->snapshots = real ? real : strdup(place);
    if (out->snapshots)
        view_state(o, out->snapshots, false, out);
    return out->snapshots && out->state_dir ? 0 : mcfs_fail_errno(err, ENOMEM, "%s", o->source);
}

int source_parse(const struct mount_options *o, struct source *out, struct mcfs_error *err)
{
    const char *s = o->source;
    *out = (struct source){.kind = SOURCE_STANDALONE};
    if (!s || !*s || strcmp(s, "mooncakefs") == 0 || strcmp(s, "none") == 0) {
        out->state_dir = o->storage_path ? strdup(o->storage_path) : state_dir_default();
        return 0;
    }
    if (strncmp(s, "local:", 6) == 0) {
        if (!s[6])
            return mcfs_fail(err, MCFS_INVALID_PARAMS, "'%s' names no directory", s);
        out->state_dir = strdup(s + 6);
        return 0;
    }
    if (strncmp(s, SNAPSHOT_SOURCE, strlen(SNAPSHOT_SOURCE)) == 0)
        return parse_snapshot_source(o, s + strlen(SNAPSHOT_SOURCE), out, err);
    if (strncmp(s, OFFLOAD_SOURCE, strlen(OFFLOAD_SOURCE)) == 0)
        return parse_offload_source(o, s + strlen(OFFLOAD_SOURCE), out, err);
    const char *colon = strrchr(s, ':');
    if (strncmp(s, "unix:", 5) != 0 &&
        (!colon || colon == s || strspn(colon + 1, "0123456789") != strlen(colon + 1) || !colon[1]))
        return mcfs_fail(err, MCFS_INVALID_PARAMS,
                         "'%s' is not a source: local:DIR, HOST:PORT, unix:PATH, snapshot:PLACE or "
                         "offload:DIR",
                         s);
    out->kind = SOURCE_MASTER;
    out->master_address = strdup(s);
    out->state_dir = o->storage_path ? strdup(o->storage_path) : state_dir_default();
    return 0;
}

void source_free(struct source *s)
{
    free(s->state_dir);
    free(s->master_address);
    free(s->snapshots);
    free(s->offload);
}
