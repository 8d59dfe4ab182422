"""Rendezvous: the ranks of a job agree on one run directory and attempt.

Rank 0 chooses, and puts its choice into the process group's store. The others read it there at their next poll, and
write to a provisional directory until then. No rank waits for another. A poll has a connection of its own: on the job's
own client the job's threads would queue behind it. It is closed after the poll, so that no descriptor stays open.
"""

import hashlib
import json
import os
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from time import monotonic_ns
from typing import Any

from traincope.errors import RunDirectoryError
from traincope.private_files import make_directory
from traincope.record.instrumentation.torch_private import is_on_disk, rendezvous_store
from traincope.record.session.identity import RUN_ID, Identity, process_group_rank
from traincope.store.layout import RUN_FILE, attempt_directory, rank_directory
from traincope.store.lines import read_object
from traincope.store.places.names import newest_first, reserve_run

STORE_TIMEOUT = timedelta(seconds=2)
EAGER_POLLS = 16
"""Number of polls in quick succession. Later polls come once a second, because rank 0 may not record at all."""
POLL_INTERVAL_NS = 1_000_000_000
KEY_BYTES = 32
"""Size of a job's key, which hexadecimal digits write."""
LAUNCH_BYTES = 8
"""Size of a launch's name, which hexadecimal digits write."""

_runs_begun: Counter[str] = Counter()
"""Rendezvous directory -> runs that this process has begun there. It is equal on ranks that take part in all of them.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The place of a rank's records."""

    rank: int
    world_size: int
    run_id: str
    """Id of the job's launch, the same on all ranks."""
    name: str
    """Name of the run."""
    run: Path
    attempt: int
    directory: Path
    """The rank's own directory. The creator of this object has created it."""
    key: str | None = field(default=None, repr=False)
    """Key of the job with which the agents of its hosts recognize each other. None: they do not talk to each other."""
    named: Path | None = None
    """The run directory as the user knows it, if the records are in another place on this node; otherwise None."""
    launch: str | None = None
    """Random name of this launch of the job, the same on all ranks; None if a rank could not learn it."""


class Rendezvous:
    """The rendezvous of one run.

    `out` is the run directory if it was given; otherwise runs are in `root` under their id.
    """

    def __init__(
        self,
        *,
        out: Path | None,
        root: Path,
        identity: Identity,
        witness: bool = False,
        named: Path | None = None,
        for_store: bool = False,
    ) -> None:
        """`witness`: as rank 0, give the job a key. It goes through the store to the ranks, and to no file.

        `named`: the directory that the user knows, if `out`, or otherwise `root`, is its place on this node.
        `for_store`: as of `reserve_run`.
        """
        self._out = out
        self._root = root
        self._named = named
        self._identity = identity
        self._witness = witness
        self._for_store = for_store
        base = str(named or out or root)
        of_base = hashlib.sha1(os.fsencode(base)).hexdigest()[:12]
        self._key = f"traincope/{of_base}/{identity.store_restarts}/{_runs_begun[base]}"
        _runs_begun[base] += 1
        self._num_polls = 0
        self._polled_ns = 0
        self._store_failed = False
        """The store failed once. It is not used again."""

    def poll(self, *, without_group: bool = False) -> Place | None:
        """Return the place as soon as it is known. `without_group`: without a process group now, there will be none.

        Raises OSError if the directory cannot be created.
        """
        grouped = process_group_rank()
        if grouped is None:
            return self.place_from_environment() if without_group else None
        rank, world_size = grouped
        if rank == 0:
            place = self._choose(world_size)
            return self._publish(place) if world_size > 1 else place
        choice = self._read_choice()
        if choice is None:
            return None
        place = self._claim(rank, world_size, str(choice["id"]), str(choice["name"]), int(choice["attempt"]))
        key, launch = (value if isinstance(value := choice.get(name), str) else None for name in ("key", "launch"))
        return replace(place, key=key, launch=launch)

    def place_from_environment(self) -> Place:
        """Return the place from the environment alone, without the other ranks: the last resort."""
        rank, world_size = process_group_rank() or (self._identity.rank or 0, self._identity.world_size)
        run_id = self._run_id()
        name = self.given_name() or self._name_of_launch() or (self._new_name() if world_size == 1 else run_id)
        return self._claim(rank, world_size, run_id, name, self._identity.restarts)

    def _run_id(self) -> str:
        return self._identity.run_id or time.strftime("%Y%m%d-%H%M%S") + f"-{os.getpid()}"

    def given_name(self) -> str | None:
        """Return the declared name, or that of the given run directory, or that of the launcher's job."""
        if self._identity.is_declared or self._out is None:
            return self._identity.name
        name = (self._named or self._out).name
        return name if RUN_ID.fullmatch(name) else self._run_id()

    def _name_of_launch(self) -> str | None:
        """Return the name of a run of the same launch, the newest one; None if there is none yet."""
        launch_id = self._identity.run_id
        for run in (launch_id and newest_first(self._named or self._root, self._root)) or ():
            with suppress(RunDirectoryError):
                if read_object(run / RUN_FILE).get("launch_id") == launch_id:
                    return run.name
        return None

    def _new_name(self) -> str:
        """Return a readable name that no other run has. Its directory exists then, unless it cannot be made."""
        root = self._named or self._root
        try:
            return reserve_run(root, sys.argv[0] if sys.argv else "", for_store=self._for_store).name
        except OSError:
            return self._run_id()

    def _choose(self, world_size: int) -> Place:
        """Choose for all ranks, as rank 0: the first attempt that has no directory."""
        run_id = self._run_id()
        of_launch = self._name_of_launch() if self._identity.restarts else None
        name = self.given_name() or of_launch or self._new_name()
        run = self._out or self._root / name
        attempt = self._identity.restarts
        places = [place for place in (run, self._named_run(name)) if place is not None]
        while any(attempt_directory(place, attempt).exists() for place in places):
            attempt += 1
        return replace(self._claim(0, world_size, run_id, name, attempt), launch=os.urandom(LAUNCH_BYTES).hex())

    def _named_run(self, name: str) -> Path | None:
        """Return the run directory as the user knows it, if the records are elsewhere."""
        return self._named if self._named is None or self._out is not None else self._named / name

    def _claim(self, rank: int, world_size: int, run_id: str, name: str, attempt: int) -> Place:
        """Create the rank's directory in that attempt, or in the next attempt in which it does not exist."""
        run = self._out or self._root / name
        while True:
            directory = rank_directory(run, attempt=attempt, rank=rank)
            try:
                make_directory(directory)
            except FileExistsError:
                attempt += 1
                continue
            return Place(
                rank=rank,
                world_size=world_size,
                run_id=run_id,
                name=name,
                run=run,
                attempt=attempt,
                directory=directory,
                named=self._named_run(name),
            )

    def _publish(self, place: Place) -> Place:
        """Put the choice into the store, and return it with the job's key. A store on disk gets no key."""
        try:
            store = rendezvous_store(timeout=STORE_TIMEOUT)
            key = os.urandom(KEY_BYTES).hex() if self._witness and not is_on_disk(store) else None
            choice = {
                "id": place.run_id,
                "name": place.name,
                "attempt": place.attempt,
                "key": key,
                "launch": place.launch,
            }
            store.set(self._key, json.dumps(choice))
        except (RuntimeError, NotImplementedError, AttributeError):
            # A store that cannot be shared: the other ranks use their environment at the end, and learn no launch.
            return replace(place, launch=None)
        return replace(place, key=key)

    def _read_choice(self) -> dict[str, Any] | None:
        now = monotonic_ns()
        if self._store_failed or (self._num_polls >= EAGER_POLLS and now - self._polled_ns < POLL_INTERVAL_NS):
            return None
        self._num_polls, self._polled_ns = self._num_polls + 1, now
        try:
            store = rendezvous_store(timeout=STORE_TIMEOUT)
            if not store.check([self._key]):
                return None
            choice: dict[str, Any] = json.loads(store.get(self._key))
        except (RuntimeError, NotImplementedError, AttributeError):
            self._store_failed = True
            return None
        return choice
