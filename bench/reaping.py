#!/usr/bin/env python3
"""What a bystander notices while a thousand engine workers are given up at once.

Usage: reaping.py BINARY [INSTANCES] [OBJECTS]     (needs pyzmq and msgspec)

Registers INSTANCES (1,000), each over a connection of its own and each with a store of OBJECTS (16) under way, with a
server that gives up who is silent for a second. Another worker sends PINGs one after the other, and what they take is
printed in milliseconds: with all of them registered and nothing else going on; while all fall silent and are reaped;
while those of another thousand, whose memory rests, close their connections in one go.
"""
import os
import sys
import time
from pathlib import Path

os.environ["LARDER_BINARY"] = sys.argv[1]
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "conformance"))

import wire  # noqa: E402
import zmq  # noqa: E402
from larder_server import LarderServer  # noqa: E402
from wire import Op, RawConnection  # noqa: E402

CHUNK = 8
PATIENT_SECONDS = 60.0
ROW = 400  # of PINGs: some 30 ms, in which a moment's trouble shows


def prepare(server: LarderServer, instance: int, objects: int) -> RawConnection:
    """A worker that has told nobody yet whether its store will be finished."""
    connection = RawConnection(server.port, seconds=PATIENT_SECONDS)
    connection.ask(Op.REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT, wire.registration(instance))
    key = wire.key([instance] * (objects * CHUNK), worker_id=0, request_id=str(instance))
    answer = connection.ask(Op.PREPARE_STORE, key, instance)
    assert len(answer["context"]["slots"]) == objects
    return connection


def watch(bystander: RawConnection, seconds: float, event=None) -> str:
    """PINGs for a while, with an event shortly after they have begun."""
    times = []
    begin = time.monotonic()
    while (now := time.monotonic()) - begin < seconds:
        bystander.ask(Op.PING, 1)
        times.append((time.monotonic() - now) * 1000)
        if event is not None and now - begin > seconds / 8:
            event()
            event = None
    rows = [times[begin : begin + ROW] for begin in range(0, len(times) - ROW, ROW // 4)]
    worst = max(percentile(row, 99) for row in rows)
    return (
        f"{len(times)} PINGs, p50 {percentile(times, 50):.3f}, p99 {percentile(times, 99):.3f}, "
        f"p99 of the worst {ROW} in a row {worst:.3f}, most {max(times):.2f} ms"
    )


def percentile(times: list[float], percent: int) -> float:
    """What so many of a hundred took at most."""
    return sorted(times)[len(times) * percent // 100]


def main() -> None:
    """See the top of the file."""
    instances, objects = (int(word) for word in (sys.argv[2:] + ["1000", "16"][len(sys.argv) - 2 :]))
    zmq.Context.instance().set(zmq.MAX_SOCKETS, 4 * instances)
    flags = ["--worker-reap-timeout-seconds", "1", "--worker-registration-grace-seconds", "20"]
    pool_mib = 4 * instances * objects * 4096 / (1 << 20) + 16
    with LarderServer(*flags, chunk_tokens=CHUNK, pool_mib=pool_mib) as server:
        bystander = RawConnection(server.port)
        bystander.ask(Op.REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT, wire.registration(1))
        workers = [prepare(server, 2 + number, objects) for number in range(instances)]
        assert server.status()["worker_liveness"]["tracked_instances"] == instances + 1
        print("all registered: ", watch(bystander, 4))
        for number, worker in enumerate(workers):  # who has pinged once is given up after a second
            worker.ask(Op.PING, 2 + number)
        print("all reaped:     ", watch(bystander, 4))
        status = server.status()
        assert status["worker_liveness"]["tracked_instances"] == 1
        assert status["storage_manager"]["l1_manager"]["quarantined_count"] == instances * objects
        print("all leave:      ", watch(bystander, 4, lambda: [worker.close() for worker in workers]))
        assert server.l1()["quarantined_count"] == 0
        bystander.close()


if __name__ == "__main__":
    main()
