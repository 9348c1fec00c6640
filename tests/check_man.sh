#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
cd "$(dirname "$0")/.." || exit 1
mandoc -T lint -W warning packaging/man/*.[18]
