#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs clang-tidy with the flags of build/release. Without arguments: on the files changed since LINT_BASE (the previous
# commit) and in the working tree, and no new file is begun after TIDY_SECONDS (180), so that a large change cannot make
# CI late; what was left out is said. With --all: on every file, without a limit.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

database=build/release/compile_commands.json
tool=clang-tidy-14
command -v "$tool" >/dev/null || tool=clang-tidy
seconds=${TIDY_SECONDS:-180}
if [[ ${1:-} == --all ]]; then
  seconds=86400
  mapfile -t changed < <(git ls-files '*.cc')
else
  base=${LINT_BASE:-HEAD~1}
  if ! git rev-parse --quiet --verify "$base^{commit}" >/dev/null; then
    echo "tidy: $base does not exist in this clone, nothing to compare with"
    exit 0
  fi
  # A changed header is looked at through the source file of the same name.
  mapfile -t changed < <({ git diff --name-only --diff-filter=d "$base"; git ls-files --others --exclude-standard; } |
    sed -n 's/\.\(cc\|h\)$/.cc/p' | sort -u)
fi

files=()
for file in "${changed[@]}"; do
  if grep -qF "/$file\"" "$database"; then files+=("$file"); fi
done
if [[ ${#files[@]} -eq 0 ]]; then
  echo "tidy: no changed source files"
  exit 0
fi

left=$(mktemp)
trap 'rm -f "$left"' EXIT
export tool left deadline=$(($(date +%s) + seconds))
# Unknown warning options: the flags were made for GCC.
check_one() {
  if (($(date +%s) >= deadline)); then
    echo "$1" >>"$left"
  else
    "$tool" -p build/release --quiet --extra-arg=-Wno-unknown-warning-option "$1" 2> >(grep -v 'warnings\? generated' >&2)
  fi
}
export -f check_one
status=0
printf '%s\n' "${files[@]}" | xargs -P "$(nproc)" -I{} bash -c 'check_one {}' || status=1
skipped=$(wc -l <"$left")
if [[ $skipped -gt 0 ]]; then
  echo "tidy: after $seconds s these $skipped files were left out ('make tidy' checks all):"
  sed 's/^/  /' "$left"
fi
echo "tidy: $((${#files[@]} - skipped)) files checked, $([[ $status -eq 0 ]] && echo 0 problems || echo problems above)"
exit "$status"
