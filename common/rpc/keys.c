/* SPDX-License-Identifier: Apache-2.0 */
#include "common/rpc/keys.h"

#include "common/cleanup.h"
#include "common/file.h"

#include <ctype.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <sys/stat.h>

#define FILE_MAX (1u << 20)
#define KEYS_MAX 1024
#define SECRET_MIN 16
#define SECRET_MAX 64
#define NAME_MAX_LEN 64

struct mcfs_rpc_key {
    char *name;
    char *tenants; /* separated by commas; NULL: all */
    uint8_t secret[SECRET_MAX];
    size_t secret_len;
};

struct mcfs_rpc_keys {
    size_t count;
    struct mcfs_rpc_key keys[KEYS_MAX];
};

static int read_secret(const char *hex, struct mcfs_rpc_key *key)
{
    size_t len = strlen(hex);
    if (len % 2 || len < 2 * (size_t)SECRET_MIN || len > 2 * (size_t)SECRET_MAX ||
        strspn(hex, "0123456789abcdefABCDEF") != len)
        return -1;
    for (size_t i = 0; i < len; i += 2) {
        char two[3] = {hex[i], hex[i + 1], 0};
        key->secret[i / 2] = (uint8_t)strtoul(two, NULL, 16);
    }
    key->secret_len = len / 2;
    return 0;
}

/* Takes one line apart; what it says of the key itself never gets into a message. */
static int read_line(struct mcfs_rpc_keys *keys, char *line, const char *path, unsigned number,
                     struct mcfs_error *err)
{
    char *words[3], *save = NULL;
    size_t n = 0;
    line[strcspn(line, "#")] = 0;
    for (char *w = strtok_r(line, " \t\r", &save); w; w = strtok_r(NULL, " \t\r", &save)) {
        if (n == MCFS_ARRAY_SIZE(words))
            return mcfs_fail(err, MCFS_INVALID_PARAMS, "%s: line %u has more than three words",
                             path, number);
        words[n++] = w;
    }
    if (n == 0)
        return 0;
    if (keys->count == KEYS_MAX)
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "%s: more than %d keys", path, KEYS_MAX);
    struct mcfs_rpc_key *key = &keys->keys[keys->count];
    const char *name = n > 1 ? words[0] : "default";
    if (read_secret(words[n - 1], key))
        return mcfs_fail(err, MCFS_INVALID_PARAMS,
                         "%s: line %u does not end in a key of %d to %d hexadecimal digits", path,
                         number, 2 * SECRET_MIN, 2 * SECRET_MAX);
    if (strlen(name) > NAME_MAX_LEN)
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "%s: line %u: a key's name has at most %d bytes",
                         path, number, NAME_MAX_LEN);
    if (mcfs_rpc_keys_find(keys, mcfs_slice_str(name)))
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "%s: line %u: a second key '%s'", path, number,
                         name);
    bool bound = n == 3 && strcmp(words[1], "*") != 0;
    keys->count++; /* what is allocated from here on is freed with the rest */
    key->name = strdup(name);
    key->tenants = bound ? strdup(words[1]) : NULL;
    return key->name && (key->tenants || !bound) ? 0 : mcfs_fail_errno(err, ENOMEM, "%s", path);
}

/* The file's text, NUL-terminated, malloc'ed; NULL on error. */
static char *read_private(const char *path, size_t *len, struct mcfs_error *err)
{
    struct stat st;
    _cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st)) {
        mcfs_fail_errno(err, errno, "key file %s", path);
        return NULL;
    }
    if (!S_ISREG(st.st_mode) || st.st_size > FILE_MAX) {
        mcfs_fail(err, MCFS_INVALID_PARAMS, "key file %s is not a file of at most 1 MiB", path);
        return NULL;
    }
    if (st.st_mode & 077) {
        mcfs_fail_errno(err, EPERM, "key file %s is open to others (mode %04o; chmod 600 it)", path,
                        (unsigned)st.st_mode & 07777);
        return NULL;
    }
    char *text = malloc((size_t)st.st_size + 1);
    ssize_t n = text ? mcfs_pread_full(fd, text, (size_t)st.st_size, 0) : -1;
    if (n < 0) {
        mcfs_fail_errno(err, text ? errno : ENOMEM, "key file %s", path);
        free(text);
        return NULL;
    }
    text[n] = 0;
    *len = (size_t)n;
    return text;
}

struct mcfs_rpc_keys *mcfs_rpc_keys_parse(char *text, size_t len, const char *path,
                                          struct mcfs_error *err)
{
    struct mcfs_rpc_keys *keys = calloc(1, sizeof(*keys));
    int rc = 0;
    if (!keys) {
        mcfs_fail_errno(err, ENOMEM, "%s", path);
        return NULL;
    }
    char *line = text;
    for (unsigned number = 1; rc == 0 && line < text + len; number++) {
        char *end = memchr(line, '\n', (size_t)(text + len - line));
        size_t n = end ? (size_t)(end - line) : (size_t)(text + len - line);
        if (memchr(line, 0, n))
            rc = mcfs_fail(err, MCFS_INVALID_PARAMS, "%s: line %u holds a NUL", path, number);
        line[n] = 0;
        if (rc == 0)
            rc = read_line(keys, line, path, number, err);
        line += n + 1;
    }
    if (rc == 0 && keys->count == 0)
        rc = mcfs_fail(err, MCFS_INVALID_PARAMS, "%s holds no key", path);
    if (rc == 0)
        return keys;
    mcfs_rpc_keys_free(keys);
    return NULL;
}

struct mcfs_rpc_keys *mcfs_rpc_keys_load(const char *path, struct mcfs_error *err)
{
    size_t len;
    char *text = read_private(path, &len, err);
    if (!text)
        return NULL;
    struct mcfs_rpc_keys *keys = mcfs_rpc_keys_parse(text, len, path, err);
    OPENSSL_cleanse(text, len);
    free(text);
    return keys;
}

void mcfs_rpc_keys_free(struct mcfs_rpc_keys *keys)
{
    if (!keys)
        return;
    for (size_t i = 0; i < keys->count; i++) {
        free(keys->keys[i].name);
        free(keys->keys[i].tenants);
    }
    OPENSSL_cleanse(keys, sizeof(*keys));
    free(keys);
}

const struct mcfs_rpc_key *mcfs_rpc_keys_first(const struct mcfs_rpc_keys *keys)
{
    return &keys->keys[0];
}

const struct mcfs_rpc_key *mcfs_rpc_keys_find(const struct mcfs_rpc_keys *keys,
                                              struct mcfs_slice name)
{
    for (size_t i = 0; i < keys->count; i++)
        if (mcfs_slice_eq(mcfs_slice_str(keys->keys[i].name), name))
            return &keys->keys[i];
    return NULL;
}

bool mcfs_rpc_keys_any_bound(const struct mcfs_rpc_keys *keys)
{
    for (size_t i = 0; i < keys->count; i++)
        if (keys->keys[i].tenants)
            return true;
    return false;
}

const char *mcfs_rpc_key_name(const struct mcfs_rpc_key *key)
{
    return key ? key->name : "";
}

bool mcfs_rpc_key_is_bound(const struct mcfs_rpc_key *key)
{
    return key && key->tenants;
}

bool mcfs_rpc_key_allows(const struct mcfs_rpc_key *key, struct mcfs_slice tenant)
{
    if (!mcfs_rpc_key_is_bound(key))
        return true;
    for (const char *at = key->tenants; *at;) {
        size_t n = strcspn(at, ",");
        if (n && mcfs_slice_eq(mcfs_slice(at, n), tenant))
            return true;
        at += n + (at[n] == ',');
    }
    return false;
}

int mcfs_rpc_key_check(const struct mcfs_rpc_key *key, struct mcfs_slice tenant,
                       struct mcfs_error *err)
{
    if (mcfs_rpc_key_allows(key, tenant))
        return 0;
    return mcfs_fail(err, MCFS_ILLEGAL_CLIENT, "key '%s' is not good for tenant '%.*s'", key->name,
                     (int)MCFS_MIN(tenant.len, 64), tenant.data);
}

struct mcfs_slice mcfs_rpc_key_secret(const struct mcfs_rpc_key *key)
{
    return mcfs_slice((const char *)key->secret, key->secret_len);
}
