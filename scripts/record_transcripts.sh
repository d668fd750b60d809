#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Writes the responses in tests/transcripts anew, from the requests that stand there. Look at the difference before you
# commit it: clients see exactly that.
set -euo pipefail
cd "$(dirname "$0")/.."
cmake --build build/release --target serve_test
build/release/src/galley/serve/serve_test --gtest_also_run_disabled_tests --gtest_filter='Transcripts.DISABLED_*'
git diff --stat -- tests/transcripts
