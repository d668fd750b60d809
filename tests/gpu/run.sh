#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Everything that needs a GPU, in one go: the op table against ref, goldens, invariance, recorded steps, benchmarks, and
# what time is left under compute-sanitizer. Run from anywhere after `make cuda`, on a machine with a GPU. One line a
# part, figures under those that measure, and the complaints of parts that fail, which stop nothing. The most worthwhile
# parts come first; each has its own time, and none begins that could end after SECONDS_MAX.
set -uo pipefail
usage() {
  cat <<END
tests/gpu/run.sh              runs every part that the time is enough for; ends with 1 when one fails, 2 without a GPU
tests/gpu/run.sh pack DIR     puts the stripped programs and the shared libraries they need into DIR/programs.tgz, for a
                              machine that has the sources but neither compiler nor those libraries: run it there with
                              BUILD=DIR
tests/gpu/run.sh sanitize TOOL, compare_graphs
                              what parts of these names run, alone
Variables:
  BUILD=DIR        folder of the programs (build/cuda)
  LOGS=DIR         folder of whole logs (gpu-logs in BUILD)
  PARTS="A B"      only these parts: $(grep -oE '^part [a-z_]+' tests/gpu/run.sh | cut -c6- | tr '\n' ' ')
  SECONDS_MAX=N    time for all (540)
  SANITIZE=1       adds initcheck, synccheck and racecheck
  FILTER=PATTERN   of sanitize: the tests of conformance_cuda_test
END
}
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
build=${BUILD:-build/cuda}
programs=(galley tests/conformance/conformance_cuda_test tests/golden/invariance_cuda_test tests/golden/golden_cuda_test
  tests/golden/golden_slow_cuda_test tests/golden/placement_cuda_test tests/golden/device_draws_cuda_test)
if [[ ${1:-} =~ ^(-h|--help|help)$ ]]; then
  usage
  exit 0
fi
if (($#)) && ! [[ "$1" =~ ^(pack|compare_graphs|sanitize)$ ]]; then
  echo "tests/gpu/run.sh: $1: no such command; --help lists them" >&2
  exit 2
fi
if [[ ${1:-} == pack || ${1:-} == sanitize ]] && [[ ! ${2:-} =~ ^[A-Za-z0-9_./] ]]; then
  echo "tests/gpu/run.sh: $1 needs a $([[ $1 == pack ]] && echo "folder for programs.tgz" || echo "tool of compute-sanitizer")" >&2
  exit 2
fi
if [[ ! ${SECONDS_MAX:-540} =~ ^[1-9][0-9]*$ ]]; then
  echo "tests/gpu/run.sh: SECONDS_MAX=$SECONDS_MAX is no number of seconds, which is at least 1" >&2
  exit 2
fi
if [[ ${1:-} == pack ]]; then
  stripped=$(mktemp -d)
  trap 'rm -rf "$stripped"' EXIT
  mkdir -p "$2" || exit 1
  for program in "${programs[@]}"; do
    mkdir -p "$(dirname "$stripped/$program")"
    strip -o "$stripped/$program" "$build/$program" || exit 1
  done
  size=$(stat -c %s "$stripped/galley")
  if ((size > 20 << 20)); then
    echo "the stripped galley has $size bytes, more than 20 MiB; build for fewer architectures (CUDA_ARCHS=90a-real)" >&2
    exit 1
  fi
  # Everything but the C library, which has to fit the machine's own loader.
  mkdir "$stripped/libs"
  if (cd "$build" && ldd "${programs[@]}") | grep 'not found' >&2; then exit 1; fi
  (cd "$build" && ldd "${programs[@]}") | awk '$2 == "=>" && $3 ~ /^\// {print $3}' | sort -u |
    grep -vE '/(libc|libm|libpthread|libdl|librt|ld-linux[^/]*)\.so' | xargs cp -L -t "$stripped/libs" || exit 1
  tar czf "$2/programs.tgz" -C "$stripped" "${programs[@]}" libs || exit 1
  du -h "$2/programs.tgz"
  exit 0
fi
if [[ -f $build/programs.tgz && ! $build/galley -nt $build/programs.tgz ]]; then
  tar xzmf "$build/programs.tgz" -C "$build" || exit 1
fi
if [[ ! -x $build/galley ]]; then
  echo "tests/gpu/run.sh: there is no $build/galley; run make cuda, or set BUILD to the folder of the programs" >&2
  exit 2
fi
# Programs that came with their libraries; the absolute path, since parts may run elsewhere.
if [[ -d $build/libs ]]; then export LD_LIBRARY_PATH=$(cd "$build/libs" && pwd)${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}; fi
# The program itself says whether it finds a GPU.
if ! planned=$("$build/galley" plan --backend cuda --model models/nano --max-seqs 1 --json 2>&1); then
  printf 'tests/gpu/run.sh: %s does not run here: %s\n' "$build/galley" "$(tail -n 1 <<<"$planned")" >&2
  exit 2
fi
if grep -q '"device_checked": false' <<<"$planned"; then
  echo "tests/gpu/run.sh: $build/galley finds no GPU, or has no cuda backend; nothing was run" >&2
  exit 2
fi
logs=${LOGS:-$build/gpu-logs}
mkdir -p "$logs" || exit 1
[[ -n ${1:-} ]] || command -v nvidia-smi >/dev/null && nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
begin=$(date +%s)
limit=${SECONDS_MAX:-540}
status=0
ran=0
known=' '

# part NAME SECONDS SHOW COMMAND…: runs it for at most SECONDS and reports; lines of its log that match SHOW follow.
part() {
  local name=$1 most=$2 show=$3 start code left
  shift 3
  known+="$name "
  if [[ -n ${PARTS:-} && " $PARTS " != *" $name "* ]]; then return; fi
  start=$(date +%s)
  left=$((limit - (start - begin)))
  if ((left < 15)); then
    printf '%-22s not run: the time is up\n' "$name"
    return
  fi
  ran=$((ran + 1))
  timeout $((most < left ? most : left)) "$@" >"$logs/$name.log" 2>&1
  code=$?
  if ((code == 0)); then
    printf '%-22s passed in %3d s: %s\n' "$name" "$(($(date +%s) - start))" "$(grep -E 'PASSED|ERROR SUMMARY' "$logs/$name.log" | tail -1)"
  else
    printf '%-22s FAILED (%d) after %d s, see %s\n' "$name" "$code" "$(($(date +%s) - start))" "$logs/$name.log"
    grep -E 'FAILED|instead of|limit|CHECK|Invalid|rror|Failure|Killed|^galley: ' "$logs/$name.log" | grep -v '  .*relative L2' |
      head -12
    status=1
  fi
  if [[ -n $show ]]; then grep -E "$show" "$logs/$name.log"; fi
}

galley=$build/galley
export BUILD=$build LOGS=$logs
nano=(--model models/nano --backend cuda)
# The same tokens with recorded steps and without, and how fast.
compare_graphs() {
  local mode
  for mode in on off; do
    "$galley" generate "${nano[@]}" --cuda-graphs "$mode" --raw --temperature 0 --max-tokens 400 --show-timings \
      "Once upon a time" >"$logs/tokens_$mode.txt" 2>"$logs/timings_$mode.txt" || return 1
    echo "graphs $mode: $(tr '\n' ' ' <"$logs/timings_$mode.txt")"
  done
  cmp "$logs/tokens_on.txt" "$logs/tokens_off.txt" || return 1
  for mode in on off; do
    echo "graphs $mode, many at once:"
    "$galley" bench throughput "${nano[@]}" --cuda-graphs "$mode" --requests 64 --prompt-len 32 --output-len 64 \
      --concurrency 1,8,64 --speculation off --seed 1 || return 1
  done
}

conformance=$build/tests/conformance/conformance_cuda_test
# All of the op table under a tool of compute-sanitizer, some tests a process, since each waits for `ref` most of the time.
sanitize() {
  local tool=$1 shards i failed=0 pids=()
  rm -f "$logs/$tool".*.log
  shards=$(($(nproc) / 2 > 1 ? $(nproc) / 2 : 1))
  for ((i = 0; i < shards; ++i)); do
    GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$i compute-sanitizer --tool "$tool" --error-exitcode 1 "$conformance" \
      --gtest_filter="${FILTER:-*}" >"$logs/$tool.$i.log" 2>&1 &
    pids+=($!)
  done
  for ((i = 0; i < shards; ++i)); do
    wait "${pids[i]}" && continue
    failed=1
    echo "FAILED: process $i of $shards, see $logs/$tool.$i.log"
    grep -m 6 -E '^=========|FAILED' "$logs/$tool.$i.log"
  done
  cat "$logs/$tool".*.log | awk -v tool="$tool" '
    /SUMMARY:/ { for (i = 1; i < NF; ++i) if ($(i + 1) ~ /^(errors?|hazards?)/) errors += $i }
    /PASSED  \]/ { tests += $4 }
    END { printf "%s: %d errors in %d tests that passed\n", tool, errors, tests }'
  # A filter that names no test shows nothing.
  grep -q 'PASSED' "$logs/$tool".*.log && return "$failed"
  echo "FAILED: no test has run"
  return 1
}

case ${1:-} in
compare_graphs) compare_graphs && exit ;;
sanitize) sanitize "$2" && exit ;;
esac
if (($#)); then exit 1; fi

part forms 90 '' "$conformance" --gtest_filter='ConformanceOfForms*:ConformanceOfPlacement*'
part conformance 100 '' "$conformance" --gtest_filter='-ConformanceOfForms*:ConformanceOfPlacement*:*/cuda_stream_*:*/cuda_split_*'
part invariance 80 'graphs:' "$build/tests/golden/invariance_cuda_test"
part bench_layer 60 '\|' "$galley" bench layers --backend cuda
part graphs 60 'graphs|token|^ ' tests/gpu/run.sh compare_graphs
part placement 60 '' "$build/tests/golden/placement_cuda_test"
part golden 60 '' "$build/tests/golden/golden_cuda_test"
part device_draws 30 '' "$build/tests/golden/device_draws_cuda_test"
part bench_kernels 120 '\|' "$galley" bench kernels --backend cuda --only moe --only dense --only attention --prefill-rows 0
part conformance_forms 90 '' "$conformance" --gtest_filter='*/cuda_stream_*:*/cuda_split_*'
part golden_slow 90 '' "$build/tests/golden/golden_slow_cuda_test"
part memcheck 240 'errors in' tests/gpu/run.sh sanitize memcheck
part bench_slice 60 '\|' "$galley" bench slice --backend cuda
part bench_rest 90 '\|' "$galley" bench kernels --backend cuda --only mhc --only index --only draw
part bench_placement 60 '\|' "$galley" bench kernels --backend cuda --only placement
part bench_attention 60 'prefill|8192' "$galley" bench kernels --backend cuda --only attention
if [[ ${SANITIZE:-0} != 0 ]]; then
  for tool in initcheck synccheck racecheck; do
    part "$tool" 500 'errors in' tests/gpu/run.sh sanitize "$tool"
  done
fi
for name in ${PARTS:-}; do
  if [[ $known != *" $name "* ]]; then
    echo "PARTS: there is no part $name; parts are$known(SANITIZE=1 adds initcheck, synccheck and racecheck)" >&2
    status=2
  fi
done
if ((ran == 0)); then
  echo "no part has run" >&2
  ((status)) || status=1
fi
exit $status
