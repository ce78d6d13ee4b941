#!/usr/bin/env bash
# Install the LMCache client of further releases, each into a folder of its own: build/clients/<release>.
#
#   scripts/bootstrap_clients.sh PYTHON RELEASE...
#
# A process started with that folder in PYTHONPATH runs that release; everything else it needs is in the environment
# of PYTHON. 60 to 100 MB each. The folders can be put elsewhere with LARDER_CLIENTS. Silent when nothing is missing.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
clients="${LARDER_CLIENTS:-$root/build/clients}"
python="$1"
shift

say() { printf 'bootstrap_clients: %s\n' "$*" >&2; }

# The wheels hold native code for one version of Python.
python_version="$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')"

install_client() {
  local release="$1" folder="$clients/$1" stamp="$clients/$1/bootstrap.stamp"
  local wanted="lmcache $release, Python $python_version"
  if [[ -f "$stamp" && "$(<"$stamp")" == "$wanted" ]]; then
    return
  fi
  say "installing the Python client lmcache $release into $folder"
  # A folder appears under its name only when it is complete.
  local partial="$clients/.partial-$release" log="$clients/$release.log"
  mkdir -p "$clients"
  rm -rf "$partial" "$folder"
  if ! { "$python" -m pip install --disable-pip-version-check --no-input --no-deps --target "$partial" \
    "lmcache==$release" &&
    PYTHONPATH="$partial" "$python" -c 'import lmcache, sys; sys.exit(not lmcache.__file__.startswith(sys.argv[1]))' \
      "$partial/"; } >"$log" 2>&1 </dev/null; then
    tail -n 40 "$log" >&2
    say "could not install lmcache $release; all of the output: $log"
    exit 1
  fi
  rm -f "$log"
  printf '%s\n' "$wanted" >"$partial/bootstrap.stamp"
  mv "$partial" "$folder"
}

for release in "$@"; do
  install_client "$release"
done
