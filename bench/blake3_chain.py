"""The chain of blake3_bench.cc with the blake3 package, as the Python server computes it. Prints bytes per second.

Two figures: with the tokens packed beforehand (the hash alone), and with packing, which the Python server does too.

    build/venv/bin/python bench/blake3_chain.py
"""

import struct
import time

import blake3

PROMPT_TOKENS = 128 * 1024
CHUNK_TOKENS = 256
NONE_HASH = blake3.blake3(bytes(12)).digest()


def prompt() -> list[int]:
    token, tokens = 1, []
    for _ in range(PROMPT_TOKENS):
        token = (token * 1664525 + 1013904223) % 2**32
        tokens.append(token % 150000)
    return tokens


def chain(packed_chunks) -> bytes:
    digest = NONE_HASH
    for packed in packed_chunks:
        digest = blake3.blake3(digest + packed).digest()
    return digest


def best_rate(run) -> float:
    seconds = []
    for _ in range(30):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return PROMPT_TOKENS * 4 / min(seconds)


def main() -> None:
    tokens = prompt()
    chunks = [tokens[i : i + CHUNK_TOKENS] for i in range(0, PROMPT_TOKENS, CHUNK_TOKENS)]
    form = struct.Struct(f">{CHUNK_TOKENS}I")
    packed = [form.pack(*chunk) for chunk in chunks]
    print(f"packed beforehand: {best_rate(lambda: chain(packed)) / 1e6:.0f} MB/s")
    print(f"with packing:      {best_rate(lambda: chain(form.pack(*c) for c in chunks)) / 1e6:.0f} MB/s")


if __name__ == "__main__":
    main()
