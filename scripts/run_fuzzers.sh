#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs each libFuzzer target that a build folder declares for some seconds: run_fuzzers.sh build/fuzz 20. Inputs that
# a target learns are kept in <build folder>/corpus; seeds of target X_fuzz are corpus/X of fuzz/corpus.tar.xz, its words
# fuzz/X.dict. FUZZ_SEED makes runs alike: from an empty corpus most targets then try the same inputs on every machine, as
# far as FUZZ_RUNS (any number) and the seconds allow. A crash leaves its input beside the corpus and ends the run with
# the command that repeats it.
set -euo pipefail

if (($# != 2)); then
  echo "usage: scripts/run_fuzzers.sh BUILD_FOLDER SECONDS" >&2
  exit 2
fi
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=$1
seconds=$2
# number NAME VALUE PATTERN WHAT
number() {
  [[ $2 =~ $3 ]] && return
  echo "run_fuzzers.sh: $1 is $2, but has to be $4" >&2
  exit 2
}
number SECONDS "$seconds" '^[1-9][0-9]*$' "a number from 1 on"
number FUZZ_RUNS "${FUZZ_RUNS:--1}" '^(-1|[1-9][0-9]*)$' "a number from 1 on, or -1 for any number"
number FUZZ_SEED "${FUZZ_SEED:-0}" '^[0-9]{1,9}$' "a number below 1,000,000,000; 0 draws one"
found=0
alike=()
# Addresses are among what a target learns from.
if [[ ${FUZZ_SEED:-0} != 0 ]] && setarch -R true 2>/dev/null; then alike=(setarch -R); fi
mkdir -p "$build/seeds"
tar xJf fuzz/corpus.tar.xz -C "$build/seeds"
while read -r target; do
  found=1
  name=$(basename "$target")
  corpus=$build/corpus/$name
  mkdir -p "$corpus"
  extra=()
  [[ -f fuzz/${name%_fuzz}.dict ]] && extra+=("-dict=fuzz/${name%_fuzz}.dict")
  extra+=("$corpus")
  [[ -d $build/seeds/corpus/${name%_fuzz} ]] && extra+=("$build/seeds/corpus/${name%_fuzz}")
  echo "== $name, $seconds s"
  if ! "${alike[@]}" "$target" -max_total_time="$seconds" -runs="${FUZZ_RUNS:--1}" -seed="${FUZZ_SEED:-0}" \
    -timeout=10 -rss_limit_mb=4096 -print_final_stats=1 -verbosity=0 -artifact_prefix="$corpus-" \
    "${extra[@]}" >"$corpus.log" 2>&1; then
    tail -n 40 "$corpus.log"
    echo "$name failed; the input is above as 'Test unit written to', repeat with: $target FILE"
    exit 1
  fi
  grep -E 'stat::(number_of_executed_units|new_units_added)' "$corpus.log" || true
done < <(ninja -C "$build" -t targets all | sed -n "s|^\(.*_fuzz\): CXX_EXECUTABLE_LINKER.*|$build/\1|p" | sort)
if [[ $found -eq 0 ]]; then
  echo "There are no fuzz targets in $build." >&2
  exit 1
fi
