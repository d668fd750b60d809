#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks the format of every tracked C++ file, or with --fix formats them. Version 14 of clang-format is the judge,
# because versions disagree; another version is used with a warning where 14 cannot be had.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tool=clang-format-14
if ! command -v "$tool" >/dev/null; then
  tool=clang-format
  echo "clang-format-14 is not installed; using $("$tool" --version), which may disagree with CI" >&2
fi
mapfile -t files < <(git ls-files --cached --others --exclude-standard '*.h' '*.cc' '*.cu' '*.cuh' |
  grep -vxF -f <(awk '!/^#/ { print $1 }' scripts/generated_files.txt; echo))
if [[ ${1:-} == --fix ]]; then
  "$tool" -i "${files[@]}"
else
  "$tool" --dry-run -Werror "${files[@]}" || { echo "format: run 'make format'"; exit 1; }
  echo "format: ${#files[@]} files checked, 0 problems"
fi
