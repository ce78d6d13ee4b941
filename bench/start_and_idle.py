#!/usr/bin/env python3
"""How long larder takes to its first answer, and what it costs while nobody asks.

Usage: start_and_idle.py BINARY [POOL_GB] [IDLE_SECONDS]     (needs pyzmq)

Starts the binary five times with a pool of POOL_GB (2) and prints the milliseconds from exec to the reply to a
GET_CHUNK_SIZE that was sent before the port was open; then lets the last one idle and prints its resident memory
besides the pool (VmRSS less RssShmem) and its processor time.
"""
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import zmq


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(binary: str, pool_gb: float) -> tuple[subprocess.Popen, float]:
    """The running server and the milliseconds to its first answer."""
    port = free_port()
    context = zmq.Context()
    client = context.socket(zmq.DEALER)
    client.setsockopt(zmq.RECONNECT_IVL, 1)
    client.setsockopt(zmq.LINGER, 0)
    client.connect(f"tcp://127.0.0.1:{port}")
    client.send_multipart([b"\x00", b"\x12"])
    command = [binary, "serve", "--port", str(port), "--http-port", "0", "--l1-size-gb", str(pool_gb)]
    started = time.monotonic()
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    if not client.poll(10_000):
        raise SystemExit("no answer within 10 s")
    client.recv_multipart()
    took = (time.monotonic() - started) * 1000
    client.close()
    context.term()
    return server, took


def stop(server: subprocess.Popen) -> None:
    server.send_signal(signal.SIGTERM)
    server.wait(10)


def memory_kib(pid: int) -> dict[str, int]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {line.split(":")[0]: int(line.split()[1]) for line in lines if line.startswith(("VmRSS", "Rss"))}


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    binary = sys.argv[1]
    pool_gb = float(sys.argv[2]) if len(sys.argv) > 2 else 2.0
    idle_seconds = float(sys.argv[3]) if len(sys.argv) > 3 else 20.0
    times = []
    for _ in range(5):
        server, took = start(binary, pool_gb)
        times.append(took)
        if len(times) < 5:
            stop(server)
    print("first answer after ms:", " ".join(f"{took:.0f}" for took in times))
    time.sleep(5)  # the pool grows
    memory = memory_kib(server.pid)
    before = processor_seconds(server.pid)
    time.sleep(idle_seconds)
    share = (processor_seconds(server.pid) - before) / idle_seconds * 100
    besides = (memory["VmRSS"] - memory["RssShmem"]) / 1024
    print(f"resident besides the pool: {besides:.1f} MiB (anonymous {memory['RssAnon'] / 1024:.1f})")
    print(f"idle: {share:.2f} % of a core")
    stop(server)


if __name__ == "__main__":
    main()
