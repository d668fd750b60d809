#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Everything that needs a GPU: the op table against ref, goldens, invariance, and with SANITIZE=1 the op table under
# compute-sanitizer. Run from anywhere after `make cuda`, on a machine with a GPU. Prints one line a part and the
# complaints of parts that fail; whole logs go to LOGS (build/cuda/gpu-logs).
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
build=${BUILD:-build/cuda}
logs=${LOGS:-$build/gpu-logs}
mkdir -p "$logs"
command -v nvidia-smi >/dev/null && nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
status=0

# part NAME COMMAND…: runs it, reports passed or failed and how long it took.
part() {
  local name=$1 start
  shift
  start=$(date +%s)
  if "$@" >"$logs/$name.log" 2>&1; then
    printf '%-22s passed in %3d s: %s\n' "$name" "$(($(date +%s) - start))" "$(grep -E 'PASSED|ERROR SUMMARY' "$logs/$name.log" | tail -1)"
  else
    printf '%-22s FAILED after %d s, see %s\n' "$name" "$(($(date +%s) - start))" "$logs/$name.log"
    grep -E 'FAILED|instead of|limit|CHECK|Invalid|rror' "$logs/$name.log" | head -20
    status=1
  fi
}

part conformance "$build/tests/conformance/conformance_cuda_test"
part invariance "$build/tests/golden/invariance_cuda_test"
part golden "$build/tests/golden/golden_cuda_test"
part golden_slow "$build/tests/golden/golden_slow_cuda_test"
if [[ ${SANITIZE:-0} == 1 ]]; then
  for tool in memcheck racecheck; do
    part "$tool" compute-sanitizer --tool "$tool" --error-exitcode 1 "$build/tests/conformance/conformance_cuda_test" \
      --gtest_filter='-*_true*:*Head_wide*'
  done
fi
if [[ ${BENCH:-0} == 1 ]]; then "$build/bench/cuda/cuda_kernels_bench" | tee "$logs/bench.md"; fi
exit $status
