#!/usr/bin/env bash
# Run every fuzz target of build/fuzz for a number of seconds: scripts/fuzz.sh [SECONDS]
#
# Starts from the corpus in fuzz/corpus; what is found on the way is kept in build/fuzz/found, so that the next run goes on
# from there. A crash stops the run and leaves its input in build/fuzz/crashes: add it to the corpus with the fix.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

seconds="${1:-60}"
mkdir -p build/fuzz/crashes
shopt -s nullglob
count=0
for program in build/fuzz/fuzz/fuzz_*; do
  [[ -x "$program" && -f "$program" ]] || continue
  name="${program##*/fuzz_}"
  mkdir -p "build/fuzz/found/$name"
  echo "fuzz: $name for $seconds s"
  log="build/fuzz/$name.log"
  if ! "$program" -max_total_time="$seconds" -print_final_stats=1 -timeout=20 \
    -artifact_prefix="build/fuzz/crashes/$name-" \
    "build/fuzz/found/$name" "fuzz/corpus/$name" >"$log" 2>&1; then
    tail -n 60 "$log" >&2
    echo "fuzz: $name failed; the input is in build/fuzz/crashes" >&2
    exit 1
  fi
  sed -n 's/^stat::number_of_executed_units: */fuzz:   inputs tried: /p' "$log"
  count=$((count + 1))
done
[[ $count -gt 0 ]] || { echo "fuzz: no target is built in build/fuzz (make fuzz builds them)" >&2; exit 1; }
echo "fuzz: $count targets, no crash"
