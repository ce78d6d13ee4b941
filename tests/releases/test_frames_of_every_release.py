"""The life of a request in the dialect of every release, 0.4.5 to 0.5.7rc3, by frames made by hand.

Goal: what no real client is run for here works too: releases 0.4.5, 0.4.6, 0.5.1, 0.5.5 and 0.5.7rc3,
and reconnects of each. Method: numbers and names of operations come from what each release itself
declares (tests/fixtures/wire), keys and payloads are in its form; objects are moved through the
mapped pool (0.4.7 and later) or as pickled tensors (0.4.6 and later). Neither lmcache nor its classes
are imported.
"""

from __future__ import annotations

import itertools
import json
import mmap
import pickle
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from larder_server import LarderServer
from server_state import CHUNK
from wire import ABSENT, RawConnection, Reply, encode

VERSIONS = ["0.4.5", "0.4.6", "0.4.7", "0.5.1", "0.5.2", "0.5.4", "0.5.5", "0.5.6", "0.5.7rc3"]
WITH_COPIES = VERSIONS[1:]
WITH_POOL = VERSIONS[2:]

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures" / "wire"
SHAPE = [2, 2, CHUNK, 8]  # planes, layers, tokens, hidden size; float16
OBJECT_BYTES = 2 * 2 * CHUNK * 8 * 2
MODEL = "frames"

_numbers = itertools.count(1)


def number_of(version: str) -> tuple[int, ...]:
    """Comparable: 0.5.7rc3 is (0, 5, 7)."""
    return tuple(int(part) for part in version.split("rc")[0].split("."))


class FrameClient:
    """One connection that speaks the dialect of a release."""

    def __init__(self, port: int, version: str, *, reconnected: bool = False) -> None:
        self.version = number_of(version)
        declared = json.loads((FIXTURES / f"{version}.json").read_text(encoding="utf-8"))
        self._wire = {
            name.replace("NON_GPU", "ENGINE_DRIVEN"): operation["wire"]
            for name, operation in declared["operations"].items()
        }
        self._connection = RawConnection(port, settle=False)
        # A client counts its requests from 0, on whatever connection.
        self._uids = itertools.count(1000 if reconnected else 0)
        self.instance = (next(_numbers) << 20) + 7

    def close(self) -> None:
        """Drop the connection."""
        self._connection.close()

    def send(self, operation: str, *values: Any) -> bytes:
        """Send a request; returns its uid frame."""
        uid = encode(next(self._uids))
        frames = [uid, encode(self._wire[operation]), *map(encode, values)]
        self._connection.send_frames(frames)
        return uid

    def ask(self, operation: str, *values: Any) -> Any:
        """A request's answer: its value, or ABSENT."""
        uid = self.send(operation, *values)
        reply: Reply = self._connection.reply(uid)
        assert reply.frames[1] == encode(self._wire[operation])
        return reply.value

    def key(self, tokens: list[int], request_id: str, **fields: Any) -> dict[str, Any]:
        """The release's key map, with every field its clients write, in their order."""
        packed = struct.pack(f">{len(tokens)}I", *tokens)
        named = ("token_bytes", packed) if self.version >= (0, 5, 7) else ("token_ids", tokens)
        made: dict[str, Any] = {
            "model_name": MODEL, "world_size": 1, "worker_id": None, named[0]: named[1],
            "start": 0, "end": len(tokens), "request_id": request_id, "cache_salt": "",
        }  # fmt: skip
        if self.version >= (0, 5, 5):
            made |= {"request_configs": None, "num_kv_readers": 1}
        return made | fields

    def worker_key(self, tokens: list[int], request_id: str) -> dict[str, Any]:
        """The same, of the only worker."""
        return self.key(tokens, request_id, worker_id=0)

    def register(self) -> Any:
        """REGISTER an engine-driven context."""
        made: dict[str, Any] = {
            "instance_id": self.instance, "model_name": MODEL, "world_size": 1, "block_size": 4,
            "num_layers": SHAPE[1], "hidden_dim_size": SHAPE[3], "dtype_str": "float16",
            "use_mla": False,
        }  # fmt: skip
        if self.version >= (0, 5, 5):
            made["num_physical_slots"] = None
        if self.version >= (0, 5, 7):
            made["group_layouts"] = []
        return self.ask("REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT", made)

    def unregister(self) -> None:
        """UNREGISTER, from 0.4.7 on."""
        if self.version >= (0, 4, 7):
            answer = self.ask("UNREGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT", self.instance)
            assert answer is ABSENT

    def ping(self, instance: int | None = None) -> Any:
        """PING, with the instance where the release has that."""
        return self.ask("PING", *([instance] if self.version >= (0, 5, 0) else []))

    def prepare_store(self, key: dict[str, Any]) -> dict[str, Any]:
        """The context of PREPARE_STORE's answer."""
        skipped = [[]] if self.version >= (0, 5, 7) else []
        return self.ask("PREPARE_STORE", key, self.instance, *skipped)["context"]

    def lookup(self, key: dict[str, Any]) -> int:
        """LOOKUP and its answer, in chunks."""
        assert self.ask("LOOKUP", key, 1) is ABSENT
        if self.version >= (0, 5, 0):
            return self.ask("WAIT_PREFETCH_STATUS", key["request_id"], 1.0)
        return self.ask("QUERY_PREFETCH_STATUS", key["request_id"])

    def free(self, key: dict[str, Any]) -> None:
        """FREE_LOOKUP_LOCKS of the key's range."""
        extra = [[]] if self.version >= (0, 5, 7) else []
        assert self.ask("FREE_LOOKUP_LOCKS", key, 1, *extra) is ABSENT

    def end(self, request_id: str) -> None:
        """END_SESSION."""
        assert self.ask("END_SESSION", request_id) is ABSENT

    def clear(self) -> None:
        """CLEAR."""
        assert self.ask("CLEAR", *([True] if self.version >= (0, 5, 6) else [])) is ABSENT


def prompt() -> list[int]:
    """Three chunks that nobody else has."""
    number = next(_numbers)
    return [(number << 12) + token for token in range(3 * CHUNK)]


def objects_of(tokens: list[int]) -> list[bytes]:
    """The content of each chunk, as a function of its tokens."""
    chunks = [tokens[at : at + CHUNK] for at in range(0, len(tokens), CHUNK)]
    return [
        (struct.pack(f"{CHUNK}I", *chunk) * (OBJECT_BYTES // (4 * CHUNK)))[:OBJECT_BYTES]
        for chunk in chunks
    ]


def pickled(objects: list[bytes]) -> bytes:
    """As copy-mode clients send chunks."""
    return pickle.dumps(
        [torch.frombuffer(bytearray(o), dtype=torch.float16).reshape(SHAPE) for o in objects]
    )


def unpickled(data: bytes) -> list[bytes]:
    """The bytes of each chunk."""
    return [chunk.contiguous().view(torch.uint8).numpy().tobytes() for chunk in pickle.loads(data)]


def store_copies(client: FrameClient, tokens: list[int]) -> None:
    key = client.worker_key(tokens, "s")
    client.prepare_store(key)
    assert client.ask("COMMIT_STORE", key, client.instance, pickled(objects_of(tokens))) is True


def retrieve_copies(client: FrameClient, tokens: list[int], request_id: str) -> list[bytes]:
    key = client.worker_key(tokens, request_id)
    answer = client.ask("PREPARE_RETRIEVE", key, client.instance)
    assert answer["success"] is True
    assert client.ask("COMMIT_RETRIEVE", key, client.instance) is True
    return unpickled(answer["data"])


class Pool:
    """The server's segment as a client maps it."""

    def __init__(self, name: str, size: int) -> None:
        with (Path("/dev/shm") / name.lstrip("/")).open("r+b") as segment:
            self._map = mmap.mmap(segment.fileno(), size)

    def write(self, slot: dict[str, Any], content: bytes) -> None:
        assert (slot["length"], slot["shape"], slot["dtype"]) == (OBJECT_BYTES, SHAPE, "float16")
        self._map[slot["offset"] : slot["offset"] + slot["length"]] = content

    def read(self, slot: dict[str, Any]) -> bytes:
        return self._map[slot["offset"] : slot["offset"] + slot["length"]]

    def close(self) -> None:
        self._map.close()


def assert_idle(server: LarderServer) -> None:
    """Nothing is locked; requests of one connection have taken effect when the next is answered."""
    l1 = server.l1()
    assert (l1["read_locked_count"], l1["write_locked_count"]) == (0, 0)
    assert server.status()["active_sessions"] == 0


@pytest.fixture
def client(request: pytest.FixtureRequest, shared_pool: LarderServer) -> Iterator[FrameClient]:
    """A new client of the release."""
    made = FrameClient(shared_pool.port, request.param)
    assert made.ask("GET_CHUNK_SIZE") == CHUNK
    yield made
    made.close()


def of(versions: list[str]) -> Any:
    return pytest.mark.parametrize("client", versions, indirect=True, ids=versions)


@of(VERSIONS)
def test_lookup(client: FrameClient, shared_pool: LarderServer) -> None:
    tokens = prompt()
    writer = FrameClient(shared_pool.port, "0.5.2")
    writer.ask("GET_CHUNK_SIZE")
    writer.register()
    assert client.lookup(client.key(tokens, "cold")) == 0
    store_copies(writer, tokens)
    assert client.lookup(client.key(tokens, "warm")) == 3
    assert shared_pool.l1()["read_locked_count"] == 3
    client.free(client.key(tokens, "warm", start=CHUNK))
    client.end("cold")
    assert shared_pool.l1()["read_locked_count"] == 1
    client.end("warm")
    assert_idle(shared_pool)
    writer.unregister()
    writer.close()


@of(VERSIONS)
def test_management(client: FrameClient, shared_pool: LarderServer) -> None:
    assert client.ping() is True
    assert client.ask("NOOP") == "OK"
    assert client.ask("REPORT_BLOCK_ALLOCATION", 1, "m", []) is ABSENT
    if client.version >= (0, 5, 3):
        assert client.ask("GET_EXPERIMENTAL") == []
    client.clear()
    shown = shared_pool.status()["client_connections"][-1]
    assert shown["release"] != "any" and shown["decided_by"] in ("chunk_size", "messages")


@of(WITH_COPIES)
def test_copy_mode(client: FrameClient, shared_pool: LarderServer) -> None:
    tokens = prompt()
    registered = client.register()
    assert (registered is ABSENT) == (client.version == (0, 4, 6))
    store_copies(client, tokens)
    assert client.lookup(client.key(tokens, "r")) == 3
    assert retrieve_copies(client, tokens, "r") == objects_of(tokens)
    client.end("r")
    client.unregister()
    assert_idle(shared_pool)


@of(WITH_POOL)
def test_shared_memory(client: FrameClient, shared_pool: LarderServer) -> None:
    tokens = prompt()
    registered = client.register()
    pool = Pool(registered["shm_name"], registered["pool_size"])
    key = client.worker_key(tokens, "s")
    prepared = client.prepare_store(key)
    assert prepared["chunk_indices"] == [0, 1, 2]
    for slot, content in zip(prepared["slots"], objects_of(tokens), strict=True):
        pool.write(slot, content)
    assert client.ask("COMMIT_STORE", key, client.instance, b"") is True
    assert client.lookup(client.key(tokens, "r")) == 3
    wanted = client.worker_key(tokens, "r")
    answer = client.ask("PREPARE_RETRIEVE", wanted, client.instance)
    assert answer["success"] is True
    assert [pool.read(slot) for slot in answer["context"]["slots"]] == objects_of(tokens)
    assert client.ask("COMMIT_RETRIEVE", wanted, client.instance) is True
    pool.close()
    client.end("r")
    client.unregister()
    assert_idle(shared_pool)


@of(WITH_COPIES)
def test_what_one_stored_every_other_gets(client: FrameClient, shared_pool: LarderServer) -> None:
    tokens = prompt()
    client.register()
    store_copies(client, tokens)
    for version in WITH_COPIES:
        reader = FrameClient(shared_pool.port, version)
        reader.ask("GET_CHUNK_SIZE")
        reader.register()
        request_id = f"r-{version}"
        assert reader.lookup(reader.key(tokens, request_id)) == 3
        assert retrieve_copies(reader, tokens, request_id) == objects_of(tokens)
        reader.end(request_id)
        reader.unregister()
        reader.close()
    client.unregister()


@pytest.mark.parametrize("version", VERSIONS)
def test_reconnect_begins_with_a_heartbeat(version: str, shared_pool: LarderServer) -> None:
    client = FrameClient(shared_pool.port, version, reconnected=True)
    assert isinstance(client.ping(client.instance), bool)
    assert client.ping(client.instance) is True
    tokens = prompt()
    if client.version >= (0, 4, 6):
        client.register()
        store_copies(client, tokens)
        assert client.lookup(client.key(tokens, "r")) == 3
        client.end("r")
        client.unregister()
    else:
        assert client.lookup(client.key(tokens, "r")) == 0
        client.end("r")
    client.close()


def test_one_unregister_is_for_both_kinds_in_0_4_6(shared_pool: LarderServer) -> None:
    client = FrameClient(shared_pool.port, "0.4.6")
    client.ask("GET_CHUNK_SIZE")
    client.register()
    assert client.instance in shared_pool.status()["registered_non_cuda_instance_ids"]
    assert client.ask("UNREGISTER_KV_CACHE", client.instance) is ABSENT
    assert client.instance not in shared_pool.status()["registered_non_cuda_instance_ids"]
    client.close()


@pytest.mark.parametrize("version", ["0.5.5", "0.5.6", "0.5.7rc3"])
def test_readers_are_counted(version: str, shared_pool: LarderServer) -> None:
    client = FrameClient(shared_pool.port, version)
    client.ask("GET_CHUNK_SIZE")
    client.register()
    tokens = prompt()
    store_copies(client, tokens)
    assert client.lookup(client.key(tokens, "nobody", num_kv_readers=0)) == 0
    assert client.lookup(client.key(tokens, "two", num_kv_readers=2)) == 3
    retrieve_copies(client, tokens, "two")
    assert shared_pool.l1()["read_locked_count"] == 3  # the other reader's
    client.free(client.key(tokens, "two"))
    assert shared_pool.l1()["read_locked_count"] == 0
    assert client.lookup(client.key(tokens, "short", end=2 * CHUNK)) == 2
    for request_id in ("nobody", "two", "short"):
        client.end(request_id)
    client.unregister()
    assert_idle(shared_pool)
    client.close()


def test_chunk_size_is_told_to_those_who_negotiate(shared_pool: LarderServer) -> None:
    client = FrameClient(shared_pool.port, "0.5.7rc3")
    assert client.ask("NEGOTIATE_CHUNK_SIZE", 4) == CHUNK
    assert client.ask("NEGOTIATE_CHUNK_SIZE", CHUNK + 1) == CHUNK
    assert "wants chunks that are a multiple" in shared_pool.log_text()
    client.close()


def test_several_kv_groups_are_refused_with_a_reason(shared_pool: LarderServer) -> None:
    client = FrameClient(shared_pool.port, "0.5.7rc3")
    client.ask("GET_CHUNK_SIZE")
    group = {"num_layers": 1, "hidden_dim_size": 8, "dtype_str": "float16", "tokens_per_block": 4}
    answer = client.ask(
        "REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT",
        {
            "instance_id": client.instance, "model_name": MODEL, "world_size": 1, "block_size": 4,
            "num_layers": 2, "hidden_dim_size": 8, "dtype_str": "float16", "use_mla": False,
            "num_physical_slots": None, "group_layouts": [group, group],
        },
    )  # fmt: skip
    assert answer == {"shm_name": "", "pool_size": 0, "null_block_id": 0}
    assert "2 KV groups" in shared_pool.log_text()
    tokens = prompt()
    key = client.worker_key(tokens, "s")
    assert client.ask("COMMIT_STORE", key, client.instance, pickled(objects_of(tokens))) is False
    client.close()


def test_physical_slots_are_the_tokens_of_an_object(shared_pool: LarderServer) -> None:
    client = FrameClient(shared_pool.port, "0.5.6")
    client.ask("GET_CHUNK_SIZE")
    client.ask(
        "REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT",
        {
            "instance_id": client.instance, "model_name": MODEL, "world_size": 1, "block_size": 4,
            "num_layers": 2, "hidden_dim_size": 8, "dtype_str": "float16", "use_mla": False,
            "num_physical_slots": CHUNK // 2,
        },
    )  # fmt: skip
    slots = client.prepare_store(client.worker_key(prompt(), "s"))["slots"]
    assert [slot["shape"] for slot in slots] == [[2, 2, CHUNK // 2, 8]] * 3
    client.unregister()
    client.close()
