#!/usr/bin/env bash
# clang-tidy 14 with the checks of .clang-tidy; any finding fails. It also runs clang's own warnings, of which the
# thread-safety analysis is the one that g++ lacks.
#
#   scripts/tidy.sh             every C++ file, headers through the files that include them (long)
#   scripts/tidy.sh --changed   only files changed since the main branch, or in the last commit
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
changed_files_max=40

scripts/bootstrap.sh tidy

# Prints the commit to compare with; fails when there is none (no repository, or its first commit).
base_commit() {
  local base
  for name in origin/main main; do
    base="$(git merge-base HEAD "$name" 2>/dev/null)" || continue
    if [[ "$base" != "$(git rev-parse HEAD)" ]]; then
      echo "$base"
      return
    fi
  done
  git rev-parse --verify --quiet HEAD~1
}

# The changed sources, and for a changed header the sources of the same name.
changed_sources() {
  git diff --name-only --diff-filter=d "$1" -- src tests bench fuzz | while read -r path; do
    case "$path" in
      *.cc) echo "$path" ;;
      *.h) for source in "${path%.h}.cc" "${path%.h}_test.cc"; do
        [[ ! -f "$source" ]] || echo "$source"
      done ;;
    esac
  done | sort -u
}

files=()
if [[ "${1:-}" == --changed ]]; then
  if ! base="$(base_commit)"; then
    echo "tidy: there is no earlier commit to compare with; make tidy checks everything"
    exit 0
  fi
  mapfile -t files < <(changed_sources "$base")
  if [[ ${#files[@]} -eq 0 ]]; then
    echo "tidy: no C++ file has changed since ${base:0:12}"
    exit 0
  fi
  if [[ ${#files[@]} -gt $changed_files_max ]]; then
    echo "tidy: ${#files[@]} files have changed; checking $changed_files_max of them, make tidy checks all"
    files=("${files[@]:0:$changed_files_max}")
  fi
  files=("${files[@]/#/$PWD/}")
fi

log="$(mktemp)"
trap 'rm -f "$log"' EXIT
cmake --preset clang >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
# run-clang-tidy names every file it has passed on stdout; only findings are of interest.
if ! run-clang-tidy-14 -quiet -p build/clang -j "$(nproc)" "${files[@]/%/\$}" >"$log" 2>&1; then
  sed 's/\x1b\[[0-9;]*m//g' "$log" |
    grep -vE '^(clang-tidy-14 |[0-9]+ warnings? |Suppressed |Use -header-filter)' >&2 || true
  echo "tidy: findings above" >&2
  exit 1
fi
echo "tidy: no findings in ${#files[@]} changed files" | sed 's/in 0 changed files/in any file/'
