#!/usr/bin/env python3
"""One vLLM engine on the CPU asks for the same prompt several times, with LMCache's own connector.

Goal: show what a real engine gets out of the server: the number of prompt tokens served from
the cache and the tokens generated. Method: the engine's own prefix cache is off, so every
cached token came through the connector. The result is written as JSON; judging it is left to
run_e2e.py.

Usage: engine_turns.py --port PORT --model FOLDER --result FILE [--turns N]
Starting the engine takes one to three minutes on two cores.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

PROMPT = "abcdefgh " * 200  # about 1,800 tokens of the byte-level tokenizer: seven chunks of 256
REQUEST_TIMEOUT_S = 30.0
# The connector stores a prompt after the forward pass; the next turn must not start before.
PAUSE_BETWEEN_TURNS_S = 2.0


def connector_options(port: int) -> dict[str, Any]:
    """The engine's transfer settings: this server on the loopback, engine-driven."""
    return {
        "kv_connector": "LMCacheMPConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "lmcache.mp.host": "tcp://127.0.0.1",
            "lmcache.mp.port": port,
            "lmcache.mp.mq_timeout": REQUEST_TIMEOUT_S,
        },
    }


def run_turns(port: int, model: str, turns: int) -> list[dict[str, Any]]:
    """Generate from the same prompt `turns` times and report each turn."""
    from vllm import LLM, SamplingParams
    from vllm.config import KVTransferConfig

    engine = LLM(
        model=model,
        dtype="bfloat16",
        max_model_len=4096,
        enforce_eager=True,
        enable_prefix_caching=False,
        disable_hybrid_kv_cache_manager=True,
        kv_transfer_config=KVTransferConfig(**connector_options(port)),
    )
    sampling = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
    reports: list[dict[str, Any]] = []
    for turn in range(turns):
        started = time.monotonic()
        output = engine.generate([PROMPT], sampling)[0]
        report = {
            "cached_tokens": output.num_cached_tokens,
            "prompt_tokens": len(output.prompt_token_ids or []),
            "tokens": list(output.outputs[0].token_ids),
            "seconds": round(time.monotonic() - started, 3),
        }
        print(f"turn {turn}: {report}", flush=True)
        reports.append(report)
        time.sleep(PAUSE_BETWEEN_TURNS_S)
    return reports


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ["LMCACHE_MP_TRANSFER_MODE"] = "engine_driven"
    reports = run_turns(arguments.port, arguments.model, arguments.turns)
    arguments.result.write_text(json.dumps(reports))
    return 0


if __name__ == "__main__":
    sys.exit(main())
