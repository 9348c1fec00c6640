/* SPDX-License-Identifier: Apache-2.0 */
#include "common/flags.h"

#include "common/cleanup.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

int mcfs_parse_u64(const char *text, uint64_t *v)
{
    if (!isdigit((unsigned char)*text))
        return -1;
    char *end;
    errno = 0;
    *v = strtoull(text, &end, 10);
    return errno || *end ? -1 : 0;
}

static int parse_scaled(const char *text, double *number, const char **suffix)
{
    if (!isdigit((unsigned char)*text))
        return -1;
    char *end;
    errno = 0;
    *number = strtod(text, &end);
    *suffix = end;
    return errno ? -1 : 0;
}

int mcfs_parse_size(const char *text, uint64_t *bytes)
{
    if (mcfs_parse_u64(text, bytes) == 0)
        return 0;
    double number;
    const char *suffix;
    if (parse_scaled(text, &number, &suffix))
        return -1;
    static const char units[] = "KMGTP";
    const char *unit = *suffix ? strchr(units, toupper((unsigned char)*suffix)) : NULL;
    if (!unit ||
        (suffix[1] && strcasecmp(suffix + 1, "B") != 0 && strcasecmp(suffix + 1, "iB") != 0))
        return -1;
    for (const char *u = units; u <= unit; u++)
        number *= 1024;
    if (number >= 18446744073709551615.0)
        return -1;
    *bytes = (uint64_t)number;
    return 0;
}

int mcfs_parse_duration(const char *text, uint32_t unit_ms, uint64_t *ms)
{
    static const struct {
        const char *name;
        double ms;
    } units[] = {{"ms", 1}, {"s", 1e3}, {"m", 60e3}, {"min", 60e3}, {"h", 3600e3}, {"d", 86400e3}};
    double number;
    const char *suffix;
    if (parse_scaled(text, &number, &suffix))
        return -1;
    double scale = *suffix ? 0 : unit_ms ? unit_ms : 1;
    for (size_t i = 0; i < MCFS_ARRAY_SIZE(units); i++)
        if (strcmp(suffix, units[i].name) == 0)
            scale = units[i].ms;
    if (scale == 0 || number * scale > 1e15)
        return -1;
    *ms = (uint64_t)(number * scale);
    return 0;
}

int mcfs_parse_bool(const char *text, bool *v)
{
    static const char *const yes[] = {"true", "1", "yes", "on"};
    static const char *const no[] = {"false", "0", "no", "off"};
    for (size_t i = 0; i < MCFS_ARRAY_SIZE(yes); i++) {
        if (strcasecmp(text, yes[i]) == 0) {
            *v = true;
            return 0;
        }
        if (strcasecmp(text, no[i]) == 0) {
            *v = false;
            return 0;
        }
    }
    return -1;
}

static int parse_mode(const char *text, uint32_t *v)
{
    char *end;
    unsigned long mode = strtoul(text, &end, 8);
    if (!*text || *end || mode > 07777)
        return -1;
    *v = (uint32_t)mode;
    return 0;
}

static int store(const struct mcfs_flag *f, void *options, const char *text)
{
    void *at = (char *)options + f->offset;
    uint64_t v;
    char *end;
    switch (f->type) {
    case MCFS_FLAG_BOOL:
        return mcfs_parse_bool(text, at);
    case MCFS_FLAG_U32:
        if (mcfs_parse_u64(text, &v) || v > UINT32_MAX)
            return -1;
        *(uint32_t *)at = (uint32_t)v;
        return 0;
    case MCFS_FLAG_U64:
        return mcfs_parse_u64(text, at);
    case MCFS_FLAG_DOUBLE:
        *(double *)at = strtod(text, &end);
        return !*text || *end ? -1 : 0;
    case MCFS_FLAG_STRING: {
        char *copy = strdup(text);
        if (!copy)
            return -1;
        free(*(char **)at);
        *(char **)at = copy;
        return 0;
    }
    case MCFS_FLAG_SIZE:
        return mcfs_parse_size(text, at);
    case MCFS_FLAG_DURATION:
        return mcfs_parse_duration(text, f->unit_ms, at);
    case MCFS_FLAG_MODE:
        return parse_mode(text, at);
    }
    return -1;
}

static const char *type_words(enum mcfs_flag_type type)
{
    switch (type) {
    case MCFS_FLAG_BOOL:
        return "true or false";
    case MCFS_FLAG_U32:
    case MCFS_FLAG_U64:
        return "a whole number";
    case MCFS_FLAG_DOUBLE:
        return "a number";
    case MCFS_FLAG_SIZE:
        return "a size such as 512M or 2G";
    case MCFS_FLAG_DURATION:
        return "a time such as 500ms, 10s or 5m";
    case MCFS_FLAG_MODE:
        return "an octal mode such as 022";
    case MCFS_FLAG_STRING:
        break;
    }
    return "text";
}

static char fold(char c)
{
    return c == '-' ? '_' : c;
}

const struct mcfs_flag *mcfs_flags_find(const struct mcfs_flag *table, const char *name, size_t len)
{
    for (const struct mcfs_flag *f = table; f->name; f++) {
        size_t i = 0;
        while (i < len && f->name[i] && fold(f->name[i]) == fold(name[i]))
            i++;
        if (i == len && !f->name[i])
            return f;
    }
    return NULL;
}

/* Edits that turn a into b (Levenshtein), for "did you mean". */
static size_t distance(const char *a, size_t a_len, const char *b)
{
    size_t row[64], b_len = strlen(b);
    if (a_len >= MCFS_ARRAY_SIZE(row) || b_len >= MCFS_ARRAY_SIZE(row))
        return SIZE_MAX;
    for (size_t j = 0; j <= b_len; j++)
        row[j] = j;
    for (size_t i = 1; i <= a_len; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= b_len; j++) {
            size_t change = diagonal + (fold(a[i - 1]) != fold(b[j - 1]));
            diagonal = row[j];
            row[j] = MCFS_MIN(change, MCFS_MIN(row[j], row[j - 1]) + 1);
        }
    }
    return row[b_len];
}

static int unknown(const struct mcfs_flag *table, const char *name, size_t len,
                   struct mcfs_error *err)
{
    const char *nearest = NULL;
    size_t best = SIZE_MAX;
    for (const struct mcfs_flag *f = table; f->name; f++) {
        size_t d = distance(name, len, f->name);
        if (d < best) {
            best = d;
            nearest = f->name;
        }
    }
    if (nearest && best <= 2 + len / 3)
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "unknown option '%.*s'; did you mean '%s'?",
                         (int)len, name, nearest);
    return mcfs_fail(err, MCFS_INVALID_PARAMS, "unknown option '%.*s'", (int)len, name);
}

int mcfs_flags_set(const struct mcfs_flag *table, void *options, const char *name, size_t name_len,
                   const char *value, struct mcfs_error *err)
{
    const struct mcfs_flag *f = mcfs_flags_find(table, name, name_len);
    if (!f)
        return unknown(table, name, name_len, err);
    if (!value && f->type != MCFS_FLAG_BOOL)
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "option '%s' needs a value: %s", f->name,
                         type_words(f->type));
    if (store(f, options, value ? value : "true"))
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "option '%s': '%s' is not %s", f->name,
                         value ? value : "", type_words(f->type));
    return 0;
}

int mcfs_flags_init(const struct mcfs_flag *table, void *options, struct mcfs_error *err)
{
    for (const struct mcfs_flag *f = table; f->name; f++) {
        if (f->def && store(f, options, f->def))
            return mcfs_fail(err, MCFS_INTERNAL_ERROR, "default of option '%s'", f->name);
        const char *env = f->env ? getenv(f->env) : NULL;
        if (env && *env && store(f, options, env))
            return mcfs_fail(err, MCFS_INVALID_PARAMS, "environment variable %s: '%s' is not %s",
                             f->env, env, type_words(f->type));
    }
    return 0;
}

int mcfs_flags_parse_argv(const struct mcfs_flag *table, void *options, int *argc, char **argv,
                          struct mcfs_error *err)
{
    int kept = 1, i = 1;
    for (; i < *argc; i++) {
        const char *word = argv[i];
        if (strncmp(word, "--", 2) != 0) {
            argv[kept++] = argv[i];
            continue;
        }
        if (!word[2]) {
            i++;
            break;
        }
        const char *name = word + 2, *equals = strchr(name, '=');
        size_t len = equals ? (size_t)(equals - name) : strlen(name);
        const char *value = equals ? equals + 1 : NULL;
        const struct mcfs_flag *f = mcfs_flags_find(table, name, len);
        /* "--flag value"; a bool takes the next word only when it is one. */
        bool b;
        if (f && !value && i + 1 < *argc &&
            (f->type != MCFS_FLAG_BOOL || mcfs_parse_bool(argv[i + 1], &b) == 0))
            value = argv[++i];
        if (mcfs_flags_set(table, options, name, len, value, err))
            return -1;
    }
    for (; i < *argc; i++)
        argv[kept++] = argv[i];
    argv[kept] = NULL;
    *argc = kept;
    return 0;
}

void mcfs_flags_help(const struct mcfs_flag *table, FILE *to)
{
    for (const struct mcfs_flag *f = table; f->name; f++)
        fprintf(to, "  %-36s %s%s%s%s\n", f->name, f->help ? f->help : "", f->def ? " [" : "",
                f->def ? f->def : "", f->def ? "]" : "");
}

void mcfs_flags_free(const struct mcfs_flag *table, void *options)
{
    for (const struct mcfs_flag *f = table; f->name; f++) {
        if (f->type != MCFS_FLAG_STRING)
            continue;
        char **at = (char **)(void *)((char *)options + f->offset);
        free(*at);
        *at = NULL;
    }
}
