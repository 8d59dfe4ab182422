"""How the ranks of a job come to share one run directory and attempt.

Rank 0 chooses and puts its choice into the process group's store; the others read it there when
they next look, and write to a provisional directory until then. Nobody waits for anybody. Looking
is one round trip on a connection of our own: the job's client would make its threads queue.
"""

import hashlib
import json
import os
import time
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from time import monotonic_ns
from typing import Any

from traincope.record.identity import Identity, process_group_rank
from traincope.record.torch_private import meeting_store
from traincope.store.layout import attempt_directory, rank_directory

STORE_TIMEOUT = timedelta(seconds=2)
FIRST_LOOKS = 16
"""So often rank 0's word is asked for at once; later once a second, for rank 0 may not record at all."""
LOOK_INTERVAL_NS = 1_000_000_000

_held: Counter[str] = Counter()
"""Meeting place -> runs this process has begun there; the same on every rank that takes part in all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a rank's records belong."""

    rank: int
    world_size: int
    run_id: str
    run: Path
    attempt: int
    directory: Path
    """The rank's own, made by whoever got this."""


class Meeting:
    """Of one run. `out` is the run directory where it was given, else runs lie in `root` under their id."""

    def __init__(self, *, out: Path | None, root: Path, identity: Identity) -> None:
        self._out = out
        self._root = root
        self._identity = identity
        where = str(out or root)
        self._key = f"traincope/{hashlib.sha1(where.encode()).hexdigest()[:12]}/{identity.restarts}/{_held[where]}"
        _held[where] += 1
        self._store: Any = None
        self._looks = 0
        self._looked_ns = 0
        self._no_store = False
        """The store answered with an error: it is left alone from then on."""

    def look(self, *, without_group: bool = False) -> Place | None:
        """The place, as soon as it is known; `without_group`: if there is no process group, there will be none.

        Raises OSError where the directory cannot be made.
        """
        grouped = process_group_rank()
        if grouped is None:
            return self.alone() if without_group else None
        rank, world_size = grouped
        if rank == 0:
            place = self._choose(world_size)
            if world_size > 1:
                self._tell(place)
            return place
        told = self._ask()
        if told is None:
            return None
        return self._claim(rank, world_size, str(told["id"]), int(told["attempt"]))

    def alone(self) -> Place:
        """What the environment says, without the others: the last resort."""
        rank, world_size = process_group_rank() or (self._identity.rank or 0, self._identity.world_size)
        return self._claim(rank, world_size, self._named(), self._identity.restarts)

    def _named(self) -> str:
        return self._identity.run_id or time.strftime("%Y%m%d-%H%M%S") + f"-{os.getpid()}"

    def _choose(self, world_size: int) -> Place:
        """Rank 0's choice: an attempt that nobody has begun."""
        run_id = self._named()
        run = self._out or self._root / run_id
        attempt = self._identity.restarts
        while attempt_directory(run, attempt).exists():
            attempt += 1
        return self._claim(0, world_size, run_id, attempt)

    def _claim(self, rank: int, world_size: int, run_id: str, attempt: int) -> Place:
        """Make the rank's directory in that attempt, or in the first after it where it is not taken."""
        run = self._out or self._root / run_id
        while True:
            directory = rank_directory(run, attempt=attempt, rank=rank)
            try:
                directory.mkdir(parents=True)
            except FileExistsError:
                attempt += 1
                continue
            return Place(rank=rank, world_size=world_size, run_id=run_id, run=run, attempt=attempt, directory=directory)

    def _tell(self, place: Place) -> None:
        try:
            self._connection().set(self._key, json.dumps({"id": place.run_id, "attempt": place.attempt}))
        except (RuntimeError, NotImplementedError, AttributeError):
            return  # a store that cannot be shared: the others go by their environment at the end

    def _ask(self) -> dict[str, Any] | None:
        now = monotonic_ns()
        if self._no_store or (self._looks >= FIRST_LOOKS and now - self._looked_ns < LOOK_INTERVAL_NS):
            return None
        self._looks, self._looked_ns = self._looks + 1, now
        try:
            store = self._connection()
            if not store.check([self._key]):
                return None
            told: dict[str, Any] = json.loads(store.get(self._key))
        except (RuntimeError, NotImplementedError, AttributeError):
            self._no_store = True
            return None
        self._store = None
        return told

    def _connection(self) -> Any:
        if self._store is None:
            self._store = meeting_store(timeout=STORE_TIMEOUT)
        return self._store
