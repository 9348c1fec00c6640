/* SPDX-License-Identifier: Apache-2.0 */
/* Recovery's reading of a whole log, with bad places between the records. */
#include "backends/bucket/bucket_recover.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    replay_check(data, size, 1 << 20);
    return 0;
}
