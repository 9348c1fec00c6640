#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
cd "$(dirname "$0")/.." || exit 1
find include common backends snapshot master fs tools tests -name '*.[ch]' -print0 |
    xargs -0 clang-format --dry-run -Werror
