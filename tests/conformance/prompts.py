"""Prompts: the tokens of engine requests. Needs neither torch nor lmcache."""

from __future__ import annotations

import itertools
import os
import random
from dataclasses import dataclass, field

_request_numbers = itertools.count()


def _new_request_id() -> str:
    return f"request-{os.getpid()}-{next(_request_numbers)}"


@dataclass
class Prompt:
    """The tokens of one engine request."""

    tokens: list[int]
    salt: str = ""
    request_id: str = field(default_factory=_new_request_id)

    def again(self) -> Prompt:
        """The same prompt as another request."""
        return Prompt(self.tokens, self.salt)

    def cut(self, tokens: int) -> Prompt:
        """Its first tokens, as the same request."""
        return Prompt(self.tokens[:tokens], self.salt, self.request_id)


def random_prompt(tokens: int, salt: str = "", seed: int | None = None) -> Prompt:
    """A prompt that no other test uses, unless the seed is the same."""
    source = random.Random(seed) if seed is not None else random.SystemRandom()
    return Prompt([source.randrange(1 << 32) for _ in range(tokens)], salt)
