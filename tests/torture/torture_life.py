"""What one client process does in a torture run: the life of an engine that does not give up.

Goal: as in a soak (tests/releases/soak_workload.py), no byte is wrong, no promise is broken and no
request is left without its answer, while this process is stopped, killed and cut off from its
server at any time.
Method: the courses of the soak, and two in which the process stops itself in the middle of a
transfer, for longer than the server waits. Whatever fails while the server was there and this
process awake is a fault. What fails otherwise is counted, and the engine starts over, as a real
one's recovery does. Wrong bytes are never excused.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable

import torch
from kv import WrongBytes
from prompts import Prompt
from release_client import CALL_SECONDS, ReleaseClient
from soak_workload import KINDS, SoakEngine, SoakWorkload
from state_page import Moment, StatePage
from workers import Worker


class TortureLife(SoakWorkload):
    """One engine of one kind."""

    def __init__(
        self, client: ReleaseClient, url: str, *, page: StatePage, slot: int, seed: int
    ) -> None:
        super().__init__(client, url, seed=seed, kinds=())
        self._client, self._url = client, url
        self._page, self._slot = page, slot
        # A killed engine that shares its memory leaves segments behind, which nobody may remove.
        kinds = [kind for kind in KINDS if not kind.server_copies]
        self._kind = kinds[slot % len(kinds)]
        self._known: Moment | None = None
        self._courses += [
            (6, self._stall_in_a_retrieve),
            (6, self._stall_in_a_store),
        ]

    def live(self) -> None:
        """Until the page says to leave; a fault is an exception."""
        while not self._page.leaving:
            self._attempt(self._one_request)
            self._publish()
        while self._engines:
            self._attempt(self._leave_in_order)

    # Attempts.

    def _attempt(self, what: Callable[[], None]) -> None:
        """Do something; a failure counts unless there is an excuse for it."""
        moment = self._page.moment(self._slot)
        try:
            self._start_over_after(moment)
            what()
        except WrongBytes:
            raise
        except Exception:
            if self._page.calm_since(self._slot, moment):
                raise
            self._counts["disturbed requests"] += 1
            self._known = None
        # A client takes some answers that do not come for a miss or a failed store.
        waited = time.monotonic() - moment.at
        if waited >= CALL_SECONDS and self._page.calm_since(self._slot, moment):
            raise TimeoutError(f"undisturbed requests took {waited:.1f} s")

    def _start_over_after(self, moment: Moment) -> None:
        """After a disturbance: sometimes register again, sometimes begin with new connections."""
        known = self._known
        if known is not None and self._same(known, moment):
            return
        if self._engines and self._random.random() < 0.5:
            self._recover(self._engines[0])
        else:
            self._open_anew()
        self._known = moment

    @staticmethod
    def _same(one: Moment, other: Moment) -> bool:
        return (one.server_changes, one.stalls) == (other.server_changes, other.stalls)

    def _recover(self, engine: SoakEngine) -> None:
        """As a heartbeat's recovery: registers again, on the connections that there are."""
        engine.scheduler.ping()
        for worker in engine.workers:
            self._counts["told to register"] += not worker.ping()
            worker.register()
            assert worker.ping(), "the server does not know a worker that has just registered"

    def _open_anew(self) -> None:
        while self._engines:
            self._close(self._engines.pop())
        self._engines.append(SoakEngine(self._client, self._url, self._kind))
        self._chunk_tokens = self._engines[0].scheduler.chunk_tokens
        self._ping()

    def _close(self, engine: SoakEngine) -> None:
        """Without a word to the server. The client of 0.5.6 may hang here when its server goes."""
        self._page.put(self._slot, "closing_since_change", self._page.server_changes + 1)
        for worker in engine.workers:
            worker.leave(unregister=False)
        engine.scheduler.leave()
        self._page.put(self._slot, "closing_since_change", 0)

    def _leave_in_order(self) -> None:
        engine = self._engines[0]
        for worker in engine.workers:
            worker.unregister()
        self._close(engine)
        self._engines.clear()

    def _one_request(self) -> None:
        self._ping()
        weights = [weight for weight, _ in self._courses]
        _, course = self._random.choices(self._courses, weights)[0]
        course(self._engines[0], self._prompt())
        self._counts["requests"] += 1

    def _publish(self) -> None:
        """What this process counted must outlive it."""
        for name, value in self._counts.items():
            self._page.add(self._slot, name, value)
        self._counts = Counter()
        self._page.add(self._slot, "steps")

    # Courses.

    def _stop(self) -> None:
        """Sleep until the run wakes this process."""
        self._page.add(self._slot, "own_stalls")
        os.kill(os.getpid(), signal.SIGSTOP)

    def _stall_in_a_retrieve(self, engine: SoakEngine, prompt: Prompt) -> None:
        """What a transfer was given stays as it is, whatever happens to its owner meanwhile."""
        hits, _ = self._lookup(engine, prompt)
        if not hits:
            engine.scheduler.end(prompt)
            return
        worker = self._random.choice(engine.workers)
        key = worker.key(prompt, 0, hits)
        chunks = worker.transfer.data_path.prepare_retrieve(key, worker.instance_id)
        assert chunks is not None, "a promised hit was not kept"
        self._stop()
        self._compare(worker, chunks, prompt)
        self._counts["stalls in a retrieve"] += 1
        del chunks
        worker.transfer.data_path.commit_retrieve(key, worker.instance_id)
        engine.scheduler.end(prompt)

    def _compare(self, worker: Worker, chunks: list[torch.Tensor], prompt: Prompt) -> None:
        wanted = worker.kv.object_bytes(prompt, 0, len(chunks))
        for chunk, content in zip(chunks, wanted, strict=True):
            if chunk.contiguous().view(torch.uint8).numpy().tobytes() != content:
                raise WrongBytes("a chunk changed while it was being retrieved")
            self._counts["bytes"] += len(content)

    def _stall_in_a_store(self, engine: SoakEngine, prompt: Prompt) -> None:
        """Late bytes hit nobody: whoever retrieves compares."""
        hits, chunks = self._lookup(engine, prompt)
        engine.scheduler.end(prompt)
        worker = self._random.choice(engine.writers)
        if hits == chunks or not worker.uses_shm():
            return
        key = worker.key(prompt, hits, chunks)
        prepared = worker.transfer.data_path.prepare_store(key, worker.instance_id)
        assert prepared is not None
        views, places = prepared
        half = len(views) // 2
        contents = [worker.kv.object_bytes(prompt, hits, chunks)[place] for place in places]
        self._fill(views[:half], contents[:half])
        self._stop()
        self._fill(views[half:], contents[half:])
        self._counts["stalls in a store"] += 1
        del views, prepared
        committed = worker.transfer.data_path.commit_store(key, worker.instance_id, [])
        outcome = "commits after a stall" if committed else "commits refused after a stall"
        self._counts[outcome] += 1

    @staticmethod
    def _fill(views: list[torch.Tensor], contents: list[bytes]) -> None:
        for view, content in zip(views, contents, strict=True):
            flat = view.view(torch.uint8).flatten()
            flat.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
