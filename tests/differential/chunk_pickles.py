"""Copy-mode payloads: chunks as pickled CPU tensors, built and read as the real client does.

Goal: compare what travels as data, byte for byte. Method: every chunk is filled with one byte
value, so that its content can be written down as "11*8192".
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Sequence
from math import prod

ITEM_BYTES = {"uint8": 1, "float16": 2, "bfloat16": 2, "float32": 4}


def describe_bytes(content: bytes) -> str:
    """Such as "11*8192" for 8192 bytes of 0x11; else the length and the start of the SHA-256."""
    if content and content == content[:1] * len(content):
        return f"{content[0]:02x}*{len(content)}"
    return f"sha256 {hashlib.sha256(content).hexdigest()[:16]} of {len(content)}"


def pickled_chunks(shape: Sequence[int], dtype: str, values: Sequence[int]) -> bytes:
    """A COMMIT_STORE payload: one tensor for each byte value, all of one shape."""
    import torch

    size = prod(shape) * ITEM_BYTES[dtype]
    chunks = [
        torch.frombuffer(bytearray([value]) * size, dtype=getattr(torch, dtype)).reshape(
            list(shape)
        )
        for value in values
    ]
    return pickle.dumps(chunks)


def describe_pickle(payload: bytes) -> list[str]:
    """What a PREPARE_RETRIEVE payload holds: shape, dtype and content of each tensor."""
    import torch

    described: list[str] = []
    for chunk in pickle.loads(payload):
        content = chunk.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        dtype = str(chunk.dtype).removeprefix("torch.")
        described.append(f"{list(chunk.shape)} {dtype} {describe_bytes(content)}")
    return described
