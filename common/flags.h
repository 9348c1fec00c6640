/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_COMMON_FLAGS_H
#define MCFS_COMMON_FLAGS_H

/*
 * The one option parser: a table that names each option, its type, its default and where its value
 * goes. The same table serves `--flag=value` and `--flag value` on a command line, `name=value,...`
 * behind -o, and the environment.  Dashes and underscores mean the same.  An unknown name is an
 * error that offers the nearest known one.
 *
 * Values: bool (true/false/1/0/yes/no/on/off; bare means true), u32, u64, double, string
 * (malloc'ed), size (bytes, with K M G T, binary), duration in ms (a bare number is in the flag's
 * unit_ms; ms s m h), mode (octal).
 */

#include <mooncakefs/error.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum mcfs_flag_type {
    MCFS_FLAG_BOOL,     /* bool */
    MCFS_FLAG_U32,      /* uint32_t */
    MCFS_FLAG_U64,      /* uint64_t */
    MCFS_FLAG_DOUBLE,   /* double */
    MCFS_FLAG_STRING,   /* char * */
    MCFS_FLAG_SIZE,     /* uint64_t */
    MCFS_FLAG_DURATION, /* uint64_t, milliseconds */
    MCFS_FLAG_MODE,     /* uint32_t */
};

struct mcfs_flag {
    const char *name; /* with underscores */
    enum mcfs_flag_type type;
    size_t offset;   /* of the value in the options struct */
    const char *def; /* default, in the form a user would write; NULL: zero */
    const char *env; /* environment variable of the same meaning, or NULL */
    const char *help;
    uint32_t unit_ms; /* durations: what a bare number counts; 0 means 1 ms */
};

/* Ends a table. */
#define MCFS_FLAG_END                                                                              \
    {                                                                                              \
        NULL, MCFS_FLAG_BOOL, 0, NULL, NULL, NULL, 0                                               \
    }

/* Sets every value to its default, then to its environment variable where that is set. */
int mcfs_flags_init(const struct mcfs_flag *table, void *options, struct mcfs_error *err);

/* Sets one value by name; value NULL means the name stood alone. */
int mcfs_flags_set(const struct mcfs_flag *table, void *options, const char *name, size_t name_len,
                   const char *value, struct mcfs_error *err);

const struct mcfs_flag *mcfs_flags_find(const struct mcfs_flag *table, const char *name,
                                        size_t len);

/* Takes every "--name[=value]" out of argv (from index 1; "--" ends them); what is left stays in
 * argv, and *argc is its new length.  Single-dash words are left alone. */
int mcfs_flags_parse_argv(const struct mcfs_flag *table, void *options, int *argc, char **argv,
                          struct mcfs_error *err);

/* Prints one line per flag, with its default. */
void mcfs_flags_help(const struct mcfs_flag *table, FILE *to);

/* Frees the strings. */
void mcfs_flags_free(const struct mcfs_flag *table, void *options);

/* Parsers for single values, for use elsewhere; 0 or -1. */
int mcfs_parse_bool(const char *text, bool *v);
int mcfs_parse_u64(const char *text, uint64_t *v);
int mcfs_parse_size(const char *text, uint64_t *bytes);
int mcfs_parse_duration(const char *text, uint32_t unit_ms, uint64_t *ms);

#endif
