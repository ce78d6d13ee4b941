#!/usr/bin/env python3
"""A real vLLM engine on the CPU against a running server: first cold, then a second engine, warm.

Goal: LMCache's unmodified connector gets the same tokens and the full hit out of larder.
Method: make a tiny model, start the server with a small pool, run engine_turns.py twice (two
engine processes, one server), stop the server. The first turn of the first engine must find
nothing, every other turn all seven full chunks of the prompt, all turns the same tokens; the
server must end with its proper exit code and leave nothing in /dev/shm.

Usage: run_e2e.py --binary build/larder [--client RELEASE]
       (or --reference: LMCache's own server, of the same release, instead)
Needs `scripts/bootstrap.sh e2e`. Takes two to five minutes on two cores. Loopback only.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from environment import INSTALLED_CLIENT, ROOT, continue_inside, use_client

if TYPE_CHECKING:
    from larder_server import LarderServer
    from reference_server import ReferenceServer

HERE = Path(__file__).resolve().parent
WORK_FOLDER = ROOT / "build" / "e2e"
CHUNK_TOKENS = 256
POOL_MIB = 256
TURNS = 3
ENGINE_TIMEOUT_S = 900.0

Report = dict[str, Any]


def make_model() -> Path:
    """The model folder, made once: its weights are seeded, so an old one is as good as new."""
    folder = WORK_FOLDER / "model"
    if not (folder / "model.safetensors").exists():
        subprocess.run([sys.executable, HERE / "make_tiny_model.py", folder], check=True)
    return folder


def run_engine(port: int, model: Path, name: str) -> list[Report]:
    """One engine process; returns what each of its turns reported."""
    result = WORK_FOLDER / f"{name}.json"
    log = WORK_FOLDER / f"{name}.log"
    result.unlink(missing_ok=True)
    command = [
        sys.executable, str(HERE / "engine_turns.py"),
        "--port", str(port), "--model", str(model), "--result", str(result), "--turns", str(TURNS),
    ]  # fmt: skip
    started = time.monotonic()
    with log.open("wb") as output:
        done = subprocess.run(
            command, stdout=output, stderr=subprocess.STDOUT, timeout=ENGINE_TIMEOUT_S, check=False
        )
    assert done.returncode == 0, f"the {name} engine ended with {done.returncode}, see {log}"
    reports: list[Report] = json.loads(result.read_text())
    for turn, report in enumerate(reports):
        print(
            f"{name} turn {turn}: cached {report['cached_tokens']} of {report['prompt_tokens']} "
            f"tokens in {report['seconds']} s"
        )
    print(f"{name} engine: {time.monotonic() - started:.0f} s in all", flush=True)
    return reports


def judge(cold: list[Report], warm: list[Report]) -> None:
    """Fails unless only the very first turn computed its prompt and all turns say the same."""
    full = cold[0]["prompt_tokens"] // CHUNK_TOKENS * CHUNK_TOKENS
    assert full > 0
    cached = [report["cached_tokens"] for report in cold + warm]
    expected = [0] + [full] * (len(cached) - 1)
    assert cached == expected, f"cached tokens {cached}, expected {expected}"
    generated = {tuple(report["tokens"]) for report in cold + warm}
    assert len(generated) == 1, f"the turns did not generate the same tokens: {generated}"


def server_for(binary: Path | None) -> LarderServer | ReferenceServer:
    """The server to test, not started yet."""
    from larder_server import LarderServer
    from reference_server import ReferenceServer

    class EngineDrivenServer(ReferenceServer):
        """Newer releases leave the copying by the engine out unless it is asked for."""

        def command(self) -> list[str]:
            return [*super().command(), "--supported-transfer-mode", "engine_driven"]

    if binary is None:
        return EngineDrivenServer(pool_mib=POOL_MIB, chunk_tokens=CHUNK_TOKENS)
    os.environ["LARDER_BINARY"] = str(binary.resolve())
    return LarderServer(pool_mib=POOL_MIB, chunk_tokens=CHUNK_TOKENS)


def run(binary: Path | None, client: str) -> None:
    """The whole test; leaving the server's block stops it and checks how it ended."""
    WORK_FOLDER.mkdir(parents=True, exist_ok=True)
    model = make_model()
    with server_for(binary) as server:
        cold = run_engine(server.port, model, f"{client}-cold")
        warm = run_engine(server.port, model, f"{client}-warm")
        judge(cold, warm)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--binary", type=Path, help="the larder binary")
    which.add_argument("--reference", action="store_true", help="LMCache's own server instead")
    parser.add_argument(
        "--client", default=INSTALLED_CLIENT, metavar="RELEASE", help="the engines' LMCache release"
    )
    arguments = parser.parse_args()
    continue_inside()
    use_client(arguments.client)
    try:
        run(None if arguments.reference else arguments.binary, arguments.client)
    except (AssertionError, subprocess.SubprocessError) as fault:
        print(f"FAULT: {fault}", flush=True)
        print("0 passed, 1 failed", flush=True)
        return 1
    print("1 passed, 0 failed", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
