#!/usr/bin/env bash
# Format every C++ file with clang-format 14, or with --check: fail if one would change.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

formatter=clang-format-14
command -v "$formatter" >/dev/null || {
  echo "format: $formatter is missing (scripts/bootstrap.sh test installs it)" >&2
  exit 1
}

each_file() {
  find src tests bench fuzz \( -name '*.h' -o -name '*.cc' -o -name '*.inl' \) -print0 |
    sort -z | xargs -0 -r -n 16 -P "$(nproc)" "$formatter" "$@"
}

if [[ "${1:-}" != --check ]]; then
  each_file -i
  exit 0
fi
if ! findings="$(each_file --dry-run -Werror 2>&1)"; then
  sed -nE 's/^([^:]+):[0-9]+:[0-9]+: error: .*/\1/p' <<<"$findings" | sort -u >&2
  echo "format: the files above are not formatted; make format does it" >&2
  exit 1
fi
