"""Plays scenarios against a server and writes its answers down in a form two servers can share.

Goal: answers that differ only when the servers behave differently. Method: the segment's name
is masked, slots are numbered in the order in which they were given out, data is described by
layout and content. A missing reply is proved rather than waited for where the server may be
silent: other requests that need the same thread are answered first.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chunk_pickles import describe_bytes, describe_pickle
from steps import Ask, Engine, Fill, Peek, RawFrame, Scenario, Step
from wire import ABSENT, Op, RawConnection, encode

ANSWER_SECONDS = 20.0
SILENCE_SECONDS = 0.25  # before and after other requests have passed by
REGISTER = Op.REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT
UNREGISTER = Op.UNREGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT

Answers = list[Any]


class Segment:
    """The server's shared memory as a client maps it."""

    def __init__(self, name: str) -> None:
        with (Path("/dev/shm") / name.removeprefix("/")).open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)

    def write(self, slot: dict[str, Any], value: int) -> None:
        """Fill one slot with a byte value."""
        first = slot["offset"]
        self._map[first : first + slot["length"]] = bytes([value]) * slot["length"]

    def read(self, slot: dict[str, Any]) -> bytes:
        """The bytes of one slot."""
        return self._map[slot["offset"] : slot["offset"] + slot["length"]]

    def close(self) -> None:
        self._map.close()


class Silences:
    """Tells a missing reply from a slow one, for a server that leaves requests unanswered.

    The reference works on transfers in one thread and on lookups in another, each in order.
    Once this has answers from both, and from the thread that reads the socket, an earlier
    request is done with.
    """

    def __init__(self, port: int) -> None:
        self._connection = RawConnection(port, seconds=ANSWER_SECONDS)
        self._engine = Engine("silences")
        self._connection.ask(REGISTER, self._engine.registration())

    def pass_by(self) -> None:
        """Return when everything sent before has been worked on."""
        key = self._engine.key([], "none")
        self._connection.ask(Op.COMMIT_RETRIEVE, key, self._engine.instance)
        self._connection.ask(Op.PING, None)
        self._connection.ask(Op.NOOP)

    def close(self) -> None:
        self._connection.close()


class Player:
    """Plays one scenario after another. `may_be_silent`: some requests are not answered."""

    def __init__(self, port: int, *, may_be_silent: bool) -> None:
        self._port = port
        self._silences = Silences(port) if may_be_silent else None
        self._janitor = RawConnection(port, seconds=ANSWER_SECONDS)

    def close(self) -> None:
        self._janitor.close()
        if self._silences is not None:
            self._silences.close()

    def play(self, scenario: Scenario) -> Answers:
        """The answers to the scenario's steps; its objects and instances are removed afterwards."""
        stage = _Stage(self._port, self._receive)
        try:
            return [stage.perform(step) for step in scenario.steps]
        finally:
            stage.end_sessions()
            for instance in stage.registered:
                self._janitor.ask(UNREGISTER, instance)
            self._janitor.ask(Op.CLEAR)
            stage.close()

    def _receive(self, connection: RawConnection, uid: bytes) -> Any:
        """The value of the reply to `uid`, ABSENT, or None when there is no reply."""
        seconds = ANSWER_SECONDS if self._silences is None else SILENCE_SECONDS
        try:
            return connection.reply(uid, seconds).value
        except TimeoutError:
            if self._silences is None:
                return None
        self._silences.pass_by()
        try:
            return connection.reply(uid, SILENCE_SECONDS).value
        except TimeoutError:
            return None


class _Stage:
    """The connections, slots and segment of one scenario that is being played."""

    def __init__(self, port: int, receive: Callable[[RawConnection, bytes], Any]) -> None:
        self._port = port
        self._receive = receive
        self._connections: dict[str, RawConnection] = {}
        self._segment: Segment | None = None
        self._slot_numbers: dict[int, int] = {}  # offset -> number
        self._slots_given = 0
        self._to_fill: list[dict[str, Any]] = []
        self._to_read: list[dict[str, Any]] = []
        self._looked_up: set[tuple[str, str]] = set()  # connection and request id
        self.registered: set[int] = set()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        if self._segment is not None:
            self._segment.close()

    def end_sessions(self) -> None:
        """Give back what lookups promised, over the connections they came by."""
        for name, request_id in self._looked_up:
            connection = self._connections[name]
            self._receive(connection, connection.send(Op.END_SESSION, encode(request_id)))

    def perform(self, step: Step) -> Any:
        """Do one step and return its normalised answer."""
        if isinstance(step, Ask):
            return self._ask(step)
        if isinstance(step, Fill):
            for index, slot in enumerate(self._to_fill):
                self._mapped().write(slot, step.first + index)
            return len(self._to_fill)
        if isinstance(step, Peek):
            return [describe_bytes(self._mapped().read(slot)) for slot in self._to_read]
        raise TypeError(f"no such step: {step!r}")

    def _mapped(self) -> Segment:
        assert self._segment is not None, "slots without a segment"
        return self._segment

    def _ask(self, step: Ask) -> Any:
        if step.connection not in self._connections:
            self._connections[step.connection] = RawConnection(self._port, seconds=ANSWER_SECONDS)
        connection = self._connections[step.connection]
        frames = [_frame(payload) for payload in step.payloads]
        if step.operation == Op.PREPARE_STORE:
            self._to_fill = []
        if step.operation == Op.PREPARE_RETRIEVE:
            self._to_read = []
        if step.operation == Op.LOOKUP and isinstance(step.payloads[0], dict):
            self._looked_up.add((step.connection, step.payloads[0]["request_id"]))
        value = self._receive(connection, connection.send(step.operation, *frames))
        if value is None:
            return "no reply"
        if value is ABSENT:
            return "empty"
        return self._normalise(step, value)

    def _normalise(self, step: Ask, value: Any) -> Any:
        if step.operation == REGISTER:
            return self._registration(step, value)
        if step.operation == Op.PREPARE_STORE:
            return self._store_slots(value["context"])
        if step.operation == Op.PREPARE_RETRIEVE:
            return self._retrieved(value)
        return value

    def _registration(self, step: Ask, value: dict[str, Any]) -> dict[str, Any]:
        payload = step.payloads[0]
        if isinstance(payload, dict) and isinstance(payload.get("instance_id"), int):
            self.registered.add(payload["instance_id"])
        if not value["shm_name"]:
            return value
        if self._segment is None:
            self._segment = Segment(value["shm_name"])
        return {**value, "shm_name": "the segment"}

    def _store_slots(self, context: dict[str, Any]) -> dict[str, Any]:
        if not context:
            return {}
        self._to_fill = context["slots"]
        for slot in self._to_fill:
            self._slot_numbers[slot["offset"]] = self._slots_given
            self._slots_given += 1
        return {**context, "slots": [self._slot_name(slot) for slot in context["slots"]]}

    def _retrieved(self, value: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = {"success": value["success"]}
        if value["context"]:
            self._to_read = value["context"]["slots"]
            answer["slots"] = [self._slot_name(slot) for slot in self._to_read]
        if value["data"]:
            answer["data"] = describe_pickle(value["data"])
        return answer

    def _slot_name(self, slot: dict[str, Any]) -> str:
        assert set(slot) == {"offset", "length", "shape", "dtype"}, slot
        number = self._slot_numbers.get(slot["offset"], "of unknown origin")
        return f"slot {number}: {slot['length']} bytes {slot['shape']} {slot['dtype']}"


def _frame(payload: Any) -> bytes:
    return payload.content if isinstance(payload, RawFrame) else encode(payload)


def differences(scenario: Scenario, reference: Answers, larder: Answers) -> list[str]:
    """Steps on which larder neither gives the reference's answer nor the announced other one."""
    found: list[str] = []
    for index, step in enumerate(scenario.steps):
        where = f"{scenario.name} step {index} ({step})"
        expected = step.answer if step.deviation else reference[index]
        if larder[index] != expected:
            label = step.deviation or "reference"
            found.append(f"{where}: larder {larder[index]!r}, expected ({label}) {expected!r}")
        if step.deviation and step.answer == reference[index]:
            found.append(f"{where}: {step.deviation} announces what the reference answers too")
    return found
