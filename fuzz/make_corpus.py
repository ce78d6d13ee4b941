#!/usr/bin/env python3
"""Makes the first files of corpus/: small valid inputs of each decoder. Needs msgspec, and tests/fixtures as it is.

Files that a fuzzer found have other names (found_*) and are kept.
"""

import json
import pathlib
import pickle
import shutil

import msgspec

HERE = pathlib.Path(__file__).parent
TENSOR_PICKLES = HERE.parent / "tests" / "fixtures" / "tensor_pickles"
DEVICE_VECTORS = HERE.parent / "tests" / "fixtures" / "device_vectors.json"
CONVERSATIONS = HERE.parent / "tests" / "fixtures" / "zmtp_conversations.txt"


def folder(name):
    path = HERE / "corpus" / name
    path.mkdir(parents=True, exist_ok=True)
    return path


def make_msgpack():
    encode = msgspec.msgpack.encode
    key = {
        "model_name": "model", "world_size": 1, "worker_id": None, "token_ids": list(range(0, 140000, 3500)),
        "start": 0, "end": 40, "request_id": "request-0", "cache_salt": "",
    }  # fmt: skip
    values = {
        "key": encode(key),
        "tokens": encode([1, 127, 128, 255, 256, 65535, 65536, 4294967295, 4294967296, -1, -33, -(2**63), 2**64 - 1]),
        "tokens_wide_forms": bytes.fromhex("96cc01cd0001ce00000001cf0000000000000001d001d30000000000000001"),
        "scalars": encode([None, True, False, 1.5, "é€😀", b"\x00\xff", "x" * 40, b"y" * 300]),
        "exts": encode([msgspec.msgpack.Ext(1, b"x" * size) for size in (0, 1, 2, 3, 4, 8, 16, 17)]),
        "float32": bytes.fromhex("92ca3fc00000ca7f800000"),
        "nested": bytes([0x91] * 64 + [0xC0]),
        "nested_too_deep": bytes([0x91] * 65 + [0xC0]),
        "maps": encode({str(number): {"a": [number]} for number in range(20)}),
        "announces_too_much": bytes.fromhex("ddffffffff"),
        "empty": b"",
    }
    for name, content in values.items():
        (folder("msgpack_reader") / name).write_bytes(content)


class CpuShmTensorWrapper:
    """Pickles like a device memory handle: class, no arguments, a dict of attributes."""


def make_pickles():
    handle = CpuShmTensorWrapper()
    shape = (2, 3, 4, 5)
    handle.__dict__ = {"shm_name": "/name_1_0", "nbytes": 240, "handle": None, "shape": shape, "stride": shape, "big": 1 << 40}
    (folder("pickle_reader") / "handle").write_bytes(pickle.dumps(handle, protocol=4))
    shared = ["a", b"b", -1, 300, 70000, 1 << 70, True, False, None, (), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), {}, {1: 2}]
    for protocol in (2, 3, 4, 5):
        name = f"values_protocol_{protocol}"
        values = [value for value in shared if protocol > 2 or not isinstance(value, bytes)]
        (folder("pickle_reader") / name).write_bytes(pickle.dumps([values, values], protocol=protocol))
    for name in ("one_bfloat16", "shared", "protocol_3"):
        shutil.copy(TENSOR_PICKLES / name, folder("pickle_reader") / f"tensors_{name}")
    chosen = ("one_bfloat16", "three_float8_e4m3fn", "one_bool", "one_complex128", "strided", "shared", "protocol_3",
              "written_float8_e4m3fn", "refused_conjugated", "refused_tuple")  # fmt: skip
    for name in chosen:
        shutil.copy(TENSOR_PICKLES / name, folder("tensor_pickle") / name)
    (folder("tensor_pickle") / "empty_list").write_bytes(b"\x80\x04].")


def make_shared_tensors():
    """Recorded handles behind a byte that chooses how the tensor is registered."""
    vectors = json.loads(DEVICE_VECTORS.read_text())
    for number, handle in enumerate(vectors["handles"]):
        (folder("shared_tensor") / f"pickle_{number}").write_bytes(b"\x00" + bytes.fromhex(handle["pickle"]))
    for handle in vectors["handle_maps"]:
        (folder("shared_tensor") / f"map_{handle['name']}").write_bytes(b"\x00" + bytes.fromhex(handle["map"]))
    shapes = {"latent": (9, 16, 8), "indexer": (9, 16, 132), "fused": (9, 4, 16, 8), "planes": (2, 9, 16, 4, 8), "pool": (9, 2, 2, 24),
              "padded": (9, 16, 8)}  # fmt: skip
    for name, shape in shapes.items():
        stride = [1]
        for size in reversed(shape[1:]):
            stride.insert(0, stride[0] * size)
        if name == "padded":
            stride[0] += 40
        metadata = {"dtype": "uint8", "shape": shape, "stride": stride, "storage_offset": 3, "device_uuid": "cpu"}
        handle = {"type": "cpu_shm", "shm_name": "/lmcache_kv_1_0", "nbytes": 20000, "version": 1, "metadata": metadata}
        choice = {"pool": 2, "fused": 40}.get(name, 10)
        (folder("shared_tensor") / name).write_bytes(bytes([choice]) + msgspec.msgpack.encode(handle))


def make_zmtp():
    """Some recorded conversations behind a byte that cuts them into pieces of 64, limit a MiB."""
    chosen = ("dealer_one_request", "dealer_254_255_256_257", "dealer_explicit_identity", "req_peer", "client_heartbeats",
              "ping_inside_message", "ping_long_command_context_300", "subscribe_command", "ready_duplicate_identity",
              "ready_unknown_and_resource_properties", "long_form_empty", "length_2_62", "mechanism_PLAIN", "revision_2",
              "http_get", "zmtp_1_0_long_identity")  # fmt: skip
    name = ""
    for line in CONVERSATIONS.read_text().splitlines():
        key, _, rest = line.partition(" ")
        if key == "case":
            name = rest
        elif key == "client" and name in chosen:
            parts = (word.partition("*") for word in rest.split())
            stream = b"".join(bytes.fromhex(part) * int(times or 1) for part, _, times in parts)
            (folder("zmtp") / name).write_bytes(b"\x7f" + stream)


def make_admin_routes():
    """Requests of the admin port: method, path, content type and body."""
    json = "application/json"
    requests = {
        "get_metrics": ("GET", "/metrics", "", ""),
        "get_with_slash": ("GET", "/quota/a b\r\nx/", "", ""),
        "clear": ("POST", "/cache/clear", json, '{"tier":"l1","force":"off"}'),
        "clear_wrong_fields": ("POST", "/cache/clear", json, '{"tier":"l3","force":[1.5,{}]}'),
        "clear_not_json": ("POST", "/cache/clear", "text/plain", "{bad"),
        "quota_put": ("PUT", "/quota/tenant-a", json, '{"limit_gb":0.5}'),
        "quota_put_text": ("PUT", "/quota/_default", json, '{"limit_gb":" 1_0e-1 "}'),
        "quota_put_nan": ("PUT", "/quota/tenant-a", json, '{"limit_gb":NaN}'),
        "quota_put_large": ("PUT", "/quota/tenant-a", json, '{"limit_gb":1e308}'),
        "quota_get": ("GET", "/quota/tenant-a", "", ""),
        "quota_delete": ("DELETE", "/quota/_default", "", ""),
    }
    for name, fields in requests.items():
        (folder("admin_routes") / name).write_bytes("\0".join(fields).encode())


if __name__ == "__main__":
    make_zmtp()
    make_admin_routes()
    make_msgpack()
    make_pickles()
    make_shared_tensors()
