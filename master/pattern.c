/* SPDX-License-Identifier: Apache-2.0 */
#include "master/pattern.h"

#include "common/cleanup.h"
#include "common/clock.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#define STEPS_PER_KEY 20000
#define HEAP_KIB 1024
#define BUDGET_MS 1000 /* of matching by one request; a plain pattern takes a fraction */
#define CLOCK_EVERY 64 /* matches between two looks at the clock */

struct pattern {
    pcre2_code *code;
    pcre2_match_data *data;
    pcre2_match_context *context;
    int64_t deadline_ms;
    unsigned matches;
};

struct pattern *pattern_new(struct mcfs_slice text, struct mcfs_error *err)
{
    int code;
    PCRE2_SIZE at;
    if (text.len == 0 || text.len > PATTERN_MAX) {
        mcfs_fail(err, MCFS_INVALID_PARAMS, "a pattern has 1 to %d bytes; this one has %zu",
                  PATTERN_MAX, text.len);
        return NULL;
    }
    struct pattern *p = calloc(1, sizeof(*p));
    if (!p) {
        mcfs_fail_errno(err, ENOMEM, "pattern");
        return NULL;
    }
    p->code = pcre2_compile((PCRE2_SPTR)text.data, text.len,
                            PCRE2_DOTALL | PCRE2_DOLLAR_ENDONLY | PCRE2_NEVER_UTF |
                                PCRE2_NEVER_UCP | PCRE2_NEVER_BACKSLASH_C,
                            &code, &at, NULL);
    if (!p->code) {
        char why[128] = "";
        pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof(why));
        mcfs_fail(err, MCFS_INVALID_PARAMS, "the pattern is wrong at byte %zu: %s", at, why);
        pattern_free(p);
        return NULL;
    }
    p->data = pcre2_match_data_create(1, NULL);
    p->context = pcre2_match_context_create(NULL);
    if (!p->data || !p->context) {
        mcfs_fail_errno(err, ENOMEM, "pattern");
        pattern_free(p);
        return NULL;
    }
    pcre2_set_match_limit(p->context, STEPS_PER_KEY);
    pcre2_set_depth_limit(p->context, STEPS_PER_KEY);
    pcre2_set_heap_limit(p->context, HEAP_KIB);
    p->deadline_ms = mcfs_mono_ms() + BUDGET_MS;
    return p;
}

void pattern_free(struct pattern *p)
{
    if (!p)
        return;
    pcre2_code_free(p->code);
    pcre2_match_data_free(p->data);
    pcre2_match_context_free(p->context);
    free(p);
}

int pattern_match(struct pattern *p, struct mcfs_slice key, struct mcfs_error *err)
{
    if (++p->matches % CLOCK_EVERY == 0 && mcfs_mono_ms() > p->deadline_ms)
        return mcfs_fail(err, MCFS_INVALID_PARAMS,
                         "the pattern costs too much: more than %d ms of one request", BUDGET_MS);
    int rc = pcre2_match(p->code, (PCRE2_SPTR)key.data, key.len, 0, 0, p->data, p->context);
    if (rc >= 0)
        return 1;
    if (rc == PCRE2_ERROR_NOMATCH)
        return 0;
    return mcfs_fail(err, MCFS_INVALID_PARAMS,
                     "the pattern costs too much: more than %d steps for the key %.*s",
                     STEPS_PER_KEY, (int)MCFS_MIN(key.len, 100), key.data);
}
