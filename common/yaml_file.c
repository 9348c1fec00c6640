/* SPDX-License-Identifier: Apache-2.0 */
#include "common/yaml_file.h"

#include "common/file.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define FILE_MAX (1u << 20)

int mcfs_yaml_parse(struct mcfs_yaml *y, const char *text, size_t len, const char *path,
                    struct mcfs_error *err)
{
    yaml_parser_t parser;
    y->path = path;
    if (!yaml_parser_initialize(&parser))
        return mcfs_fail_errno(err, ENOMEM, "%s", path);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, len);
    int rc = 0;
    if (!yaml_parser_load(&parser, &y->document))
        rc = mcfs_fail(err, MCFS_INVALID_PARAMS, "%s: line %zu: %s", path,
                       parser.problem_mark.line + 1, parser.problem ? parser.problem : "not YAML");
    else
        y->loaded = true;
    yaml_parser_delete(&parser);
    return rc;
}

int mcfs_yaml_load(struct mcfs_yaml *y, const char *path, struct mcfs_error *err)
{
    ssize_t n = mcfs_read_file_alloc(path, FILE_MAX, &y->text, err);
    return n < 0 ? -1 : mcfs_yaml_parse(y, y->text, (size_t)n, path, err);
}

void mcfs_yaml_free(struct mcfs_yaml *y)
{
    if (y->loaded)
        yaml_document_delete(&y->document);
    free(y->text);
    *y = (struct mcfs_yaml)MCFS_YAML_INIT;
}

yaml_node_t *mcfs_yaml_root(struct mcfs_yaml *y)
{
    return yaml_document_get_root_node(&y->document);
}

bool mcfs_yaml_item(struct mcfs_yaml *y, const yaml_node_t *list, size_t i, yaml_node_t **item)
{
    if (list->type != YAML_SEQUENCE_NODE ||
        i >= (size_t)(list->data.sequence.items.top - list->data.sequence.items.start))
        return false;
    *item = yaml_document_get_node(&y->document, list->data.sequence.items.start[i]);
    return *item != NULL;
}

bool mcfs_yaml_pair(struct mcfs_yaml *y, const yaml_node_t *map, size_t i, yaml_node_t **key,
                    yaml_node_t **value)
{
    if (map->type != YAML_MAPPING_NODE ||
        i >= (size_t)(map->data.mapping.pairs.top - map->data.mapping.pairs.start))
        return false;
    *key = yaml_document_get_node(&y->document, map->data.mapping.pairs.start[i].key);
    *value = yaml_document_get_node(&y->document, map->data.mapping.pairs.start[i].value);
    return *key && *value;
}

const char *mcfs_yaml_text(const yaml_node_t *node)
{
    if (node->type != YAML_SCALAR_NODE)
        return NULL;
    const char *text = (const char *)node->data.scalar.value;
    return strlen(text) == node->data.scalar.length ? text : NULL;
}

int mcfs_yaml_fail(const struct mcfs_yaml *y, const yaml_node_t *node, struct mcfs_error *err,
                   const char *fmt, ...)
{
    char what[200];
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof(what), fmt, args);
    va_end(args);
    return mcfs_fail(err, MCFS_INVALID_PARAMS, "%s: line %zu: %s", y->path,
                     node ? node->start_mark.line + 1 : 1, what);
}
