#!/usr/bin/env bash
# Install what a target of the Makefile needs; silent and immediate when nothing is missing.
#
#   scripts/bootstrap.sh run|bench|fuzz|tidy|test|e2e|diff
#
# Debian packages are installed as root or with sudo; without either, the missing ones are named and the script fails.
# `test` also creates build/venv with the Python client (scripts/requirements/test.txt) and installs the clients of
# other releases (scripts/bootstrap_clients.sh), `e2e` and `diff` create build/e2e-venv (scripts/bootstrap_e2e.sh). pip
# takes its index from its own configuration: where the index gives CUDA builds of torch, name one with CPU builds in
# PIP_EXTRA_INDEX_URL to save some gigabytes.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
level="${1:-}"
lmcache_version=0.5.2
# Tested besides it, each in a folder of its own.
other_clients=(0.4.7 0.5.4 0.5.6)
e2e_clients=(0.5.6)

run_packages=(g++ cmake ninja-build pkg-config libcli11-dev libspdlog-dev libfmt-dev
  nlohmann-json3-dev libcpp-httplib-dev libxxhash-dev)
bench_packages=(libbenchmark-dev libmsgpack-cxx-dev libzmq3-dev)
test_packages=(libgtest-dev libgmock-dev libzmq3-dev clang-format-14 python3 python3-venv)
clang_packages=(clang-14 libclang-rt-14-dev libgtest-dev libgmock-dev libzmq3-dev)
tidy_packages=(clang-tidy-14 clang-format-14 python3)

say() { printf 'bootstrap: %s\n' "$*" >&2; }

packages=("${run_packages[@]}")
case "$level" in
  run) ;;
  bench) packages+=("${bench_packages[@]}") ;;
  fuzz) packages+=("${clang_packages[@]}") ;;
  tidy) packages+=("${clang_packages[@]}" "${bench_packages[@]}" "${tidy_packages[@]}") ;;
  test) packages+=("${test_packages[@]}") ;;
  e2e | diff) packages+=(python3 python3-venv) ;;
  *)
    say "usage: scripts/bootstrap.sh run|bench|fuzz|tidy|test|e2e|diff"
    exit 2
    ;;
esac

# Asks dpkg, not apt: no network, no lock, a few milliseconds.
missing_packages() {
  local installed
  installed="$(dpkg-query --show --showformat '${Package} ${db:Status-Status}\n' "$@" 2>/dev/null || true)"
  local package
  for package in "$@"; do
    grep -qxF "$package installed" <<<"$installed" || printf '%s\n' "$package"
  done
}

install_packages() {
  if ! command -v dpkg-query >/dev/null; then
    say "not a Debian system: install the equivalents of these packages yourself: $*"
    return
  fi
  local missing
  mapfile -t missing < <(missing_packages "$@")
  [[ ${#missing[@]} -gt 0 ]] || return 0
  local as_root=()
  if [[ $EUID -ne 0 ]]; then
    if ! command -v sudo >/dev/null; then
      say "\`make $level\` needs packages that are not installed, and this user cannot install them. As root:"
      say "  apt-get install ${missing[*]}"
      exit 1
    fi
    as_root=(sudo)
    [[ -t 0 ]] || as_root=(sudo -n)
  fi
  say "\`make $level\` needs Debian packages that are not installed; installing: ${missing[*]}"
  local log
  log="$(mktemp)"
  if ! { "${as_root[@]}" apt-get update &&
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
      apt-get install --yes --no-install-recommends "${missing[@]}"; } >"$log" 2>&1 </dev/null; then
    tail -n 40 "$log" >&2
    say "apt-get failed (all of its output: $log). By hand, as root: apt-get install ${missing[*]}"
    exit 1
  fi
  rm -f "$log"
}

# The system's Python, not the first in PATH: one from a version manager may lack venv or be of a version for which
# the client has no wheel.
find_python() {
  local candidate
  for candidate in /usr/bin/python3.11 /usr/bin/python3 python3.11 python3; do
    if "$candidate" -c 'import ensurepip, sys, venv; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' \
      >/dev/null 2>&1; then
      command -v "$candidate"
      return
    fi
  done
  say "no Python 3.10 to 3.13 with venv found (Debian packages: python3 python3-venv)"
  return 1
}

create_test_venv() {
  local venv="$root/build/venv" requirements="$root/scripts/requirements/test.txt"
  local stamp="$venv/bootstrap.stamp" digest
  digest="$({ cat "$requirements" && echo "lmcache==$lmcache_version"; } | sha256sum | cut -d' ' -f1)"
  if [[ -f "$stamp" && "$(<"$stamp")" == "$digest" && -x "$venv/bin/python" ]]; then
    return
  fi
  say "creating build/venv with the Python client lmcache $lmcache_version (a few minutes, about 1.3 GB)"
  local system_python
  system_python="$(find_python)"
  rm -rf "$venv"
  mkdir -p "$root/build"
  "$system_python" -m venv "$venv"
  local python="$venv/bin/python" log="$venv/bootstrap.log"
  local pip=("$python" -m pip install --disable-pip-version-check --no-input)
  # Only a failure is worth showing; pip also warns of what --no-deps leaves out on purpose.
  if ! { "${pip[@]}" --requirement "$requirements" &&
    "${pip[@]}" --no-deps "lmcache==$lmcache_version" &&
    "$python" -c 'import lmcache.v1.multiprocess.mq, pytest, torch, zmq'; } >"$log" 2>&1; then
    tail -n 40 "$log" >&2
    say "could not install the Python client; all of the output: $log"
    exit 1
  fi
  printf '%s\n' "$digest" >"$stamp"
}

install_packages "${packages[@]}"
case "$level" in
  test)
    create_test_venv
    "$root/scripts/bootstrap_clients.sh" "$root/build/venv/bin/python" "${other_clients[@]}"
    ;;
  e2e)
    "$root/scripts/bootstrap_e2e.sh"
    "$root/scripts/bootstrap_clients.sh" "${LARDER_E2E_VENV:-$root/build/e2e-venv}/bin/python" "${e2e_clients[@]}"
    ;;
  diff) "$root/scripts/bootstrap_e2e.sh" ;;
esac
