/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_COMMON_YAML_FILE_H
#define MCFS_COMMON_YAML_FILE_H

/*
 * Small YAML files (JSON is YAML, too), read with libyaml.  A document is loaded whole; anchors are
 * references in it and are never multiplied, so that no text grows.
 */

#include <mooncakefs/error.h>
#include <mooncakefs/object.h>
#include <yaml.h>

struct mcfs_yaml {
    yaml_document_t document;
    bool loaded;
    char *text;
    const char *path; /* the caller's, for messages */
};
#define MCFS_YAML_INIT                                                                             \
    {                                                                                              \
        .loaded = false                                                                            \
    }

/* Loads the one document of a file of at most 1 MiB; *y is freed with mcfs_yaml_free whatever
 * happens. INVALID_PARAMS with path and line. */
int mcfs_yaml_load(struct mcfs_yaml *y, const char *path, struct mcfs_error *err);

/* The same from a text, which stays the caller's. */
int mcfs_yaml_parse(struct mcfs_yaml *y, const char *text, size_t len, const char *path,
                    struct mcfs_error *err);
void mcfs_yaml_free(struct mcfs_yaml *y);

/* The top node; NULL in an empty document. */
yaml_node_t *mcfs_yaml_root(struct mcfs_yaml *y);

/* Item i of a sequence, pair i of a mapping; false behind the last, and for another kind of node.
 */
bool mcfs_yaml_item(struct mcfs_yaml *y, const yaml_node_t *list, size_t i, yaml_node_t **item);
bool mcfs_yaml_pair(struct mcfs_yaml *y, const yaml_node_t *map, size_t i, yaml_node_t **key,
                    yaml_node_t **value);

/* The text of a scalar; NULL for another kind of node or one with a NUL in it. */
const char *mcfs_yaml_text(const yaml_node_t *node);

/* INVALID_PARAMS: "PATH: line N: what"; -1. */
int mcfs_yaml_fail(const struct mcfs_yaml *y, const yaml_node_t *node, struct mcfs_error *err,
                   const char *fmt, ...) __attribute__((format(printf, 4, 5)));

#endif
