/* SPDX-License-Identifier: Apache-2.0 */
#include "snapshot/s3.h"

#include "common/cleanup.h"
#include "common/flags.h"

#include <string.h>

#define FIELD(name) offsetof(struct s3_config, name)

static const struct mcfs_flag table[] = {
    {"region", MCFS_FLAG_STRING, FIELD(region), "", "MOONCAKE_AWS_REGION", "", 0},
    {"endpoint", MCFS_FLAG_STRING, FIELD(endpoint), "", "MOONCAKE_AWS_S3_ENDPOINT", "", 0},
    {"bucket", MCFS_FLAG_STRING, FIELD(bucket), "", "MOONCAKE_AWS_BUCKET_NAME", "", 0},
    {"access_key", MCFS_FLAG_STRING, FIELD(access_key), "", "MOONCAKE_AWS_ACCESS_KEY_ID", "", 0},
    {"secret_key", MCFS_FLAG_STRING, FIELD(secret_key), "", "MOONCAKE_AWS_SECRET_ACCESS_KEY", "",
     0},
    {"session_token", MCFS_FLAG_STRING, FIELD(session_token), "", "AWS_SESSION_TOKEN", "", 0},
    {"ca_bundle", MCFS_FLAG_STRING, FIELD(ca_bundle), "", "AWS_CA_BUNDLE", "", 0},
    {"virtual_addressing", MCFS_FLAG_BOOL, FIELD(virtual_addressing), "true",
     "MOONCAKE_AWS_USE_VIRTUAL_ADDRESSING", "", 0},
    {"use_https", MCFS_FLAG_BOOL, FIELD(use_https), "true", "MOONCAKE_AWS_USE_HTTPS", "", 0},
    {"connect_timeout", MCFS_FLAG_DURATION, FIELD(connect_timeout_ms), "10000",
     "MOONCAKE_AWS_CONNECT_TIMEOUT_MS", "", 0},
    {"request_timeout", MCFS_FLAG_DURATION, FIELD(request_timeout_ms), "30000",
     "MOONCAKE_AWS_REQUEST_TIMEOUT_MS", "", 0},
    MCFS_FLAG_END,
};

/* The first of these variables that is set, where the value is empty still. */
static int fall_back(char **value, const char *const *names, const char *last)
{
    const char *found = NULL;
    if (*value && **value)
        return 0;
    for (; *names && !found; names++) {
        found = getenv(*names);
        found = found && *found ? found : NULL;
    }
    free(*value);
    *value = strdup(found ? found : last);
    return *value ? 0 : -1;
}

int s3_config_load(struct s3_config *c, struct mcfs_error *err)
{
    static const char *const region[] = {"AWS_REGION", "AWS_DEFAULT_REGION", NULL},
                             *const endpoint[] = {"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", NULL},
                             *const access[] = {"AWS_ACCESS_KEY_ID", NULL},
                             *const secret[] = {"AWS_SECRET_ACCESS_KEY", NULL},
                             *const none[] = {NULL};
    if (mcfs_flags_init(table, c, err))
        return -1;
    if (fall_back(&c->region, region, "us-east-1") || fall_back(&c->endpoint, endpoint, "") ||
        fall_back(&c->access_key, access, "") || fall_back(&c->secret_key, secret, "") ||
        fall_back(&c->bucket, none, "") || fall_back(&c->session_token, none, "") ||
        fall_back(&c->ca_bundle, none, ""))
        return mcfs_fail_errno(err, ENOMEM, "S3");
    if (!*c->access_key || !*c->secret_key)
        return mcfs_fail(err, MCFS_INVALID_PARAMS,
                         "S3 needs MOONCAKE_AWS_ACCESS_KEY_ID and MOONCAKE_AWS_SECRET_ACCESS_KEY "
                         "(or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY)");
    return 0;
}

void s3_config_free(struct s3_config *c)
{
    mcfs_flags_free(table, c);
}
