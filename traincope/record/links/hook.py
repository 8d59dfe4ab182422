"""Hook on the host's links: one rank per host reads them, in a thread of its own, every `POLL_SECONDS`.

A reading may wait for the firmware of a card, and a broken card answers late: the training's thread never reads. It
writes the states of the links to `rank.json`, so a healthy run has no event of them. Errors and changes are written at
once by the other thread, also while the training stands still. The kernel's log can mostly be read by root alone.
"""

import os
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from time import monotonic_ns
from typing import Any

from traincope.events import KERNEL_LOG, LINK_CHANGED
from traincope.record.instrumentation.guard import guard
from traincope.record.instrumentation.own_threads import OwnThread
from traincope.record.links.changes import LinkChanges
from traincope.record.links.kernel_log import KernelLog
from traincope.record.process.host_limits import ROOT
from traincope.record.session.identity import local_rank
from traincope.record.session.recorder import Recorder
from traincope.store.job.process import name_this_thread

POLL_SECONDS = 10.0
JOIN_SECONDS = 1.0
"""Maximum delay of the end of the run by a card that does not answer. The thread is then abandoned."""
MAX_EVENTS_PER_NAME = 1_000
OTHER_RANK = "off: nothing to do: the first rank of this host reads them"


class Links:
    """Hook on nothing in torch. The ports and slots belong to the host, so only its first rank reads them."""

    name = "links"
    level = 0

    def __init__(self, root: Path = ROOT, environment: Mapping[str, str] = os.environ) -> None:
        self._root = root
        self._environment = environment
        self._stopped = threading.Event()
        self._thread: OwnThread | None = None
        self._abandoned = False
        self._counts: Counter[str] = Counter()
        self._is_new = False
        """True if the links have changed since `rank.json` was written."""
        self._links: dict[str, dict[str, Any]] = {}

    def install(self, recorder: Recorder) -> None:
        """Raises RuntimeError if no thread can be started."""
        self._recorder = recorder
        if local_rank(self._environment):
            recorder.probes[self.name] = OTHER_RANK
            return
        self._stopped.clear()
        self._thread = OwnThread(self._run)
        self._thread.start()
        recorder.now_and_then(self._write_links)

    def remove(self) -> None:
        """Stop after a last look: what it shows may be what ended the training."""
        if self._thread is not None:
            self._stopped.set()
            self._thread.join(JOIN_SECONDS)
            self._abandoned, self._thread = True, None
            self._recorder.remove_listener(self._write_links)
            self._recorder.links = self._links

    def _run(self) -> None:
        """Each look passes a guard of its own, so that its cost counts in the step in which it runs."""
        name_this_thread()
        opened = guard(self._open)()
        if opened is None:
            return
        changes, log = opened
        is_last, look = False, guard(self._look)
        while not is_last:
            is_last = self._stopped.is_set()
            if look(changes, log, is_last) is None:
                break
            self._stopped.wait(POLL_SECONDS)

    def _open(self) -> tuple[LinkChanges, KernelLog]:
        return LinkChanges(self._root), KernelLog.open(self._root)

    def _look(self, changes: LinkChanges, log: KernelLog, is_last: bool) -> bool:
        is_new = not self._links
        for name, details in changes.look(monotonic_ns(), is_last=is_last):
            is_new |= name == LINK_CHANGED
            self._write(name, details)
        is_new |= _speeds_of_gpus(self._links) != _speeds_of_gpus(changes.links)
        self._links = changes.links
        self._is_new |= is_new  # after the links, which the training's thread may write at any time
        for kind, text in log.errors():
            self._write(KERNEL_LOG, {"of": kind.value, "kernel_message": text})
        return True

    def _write_links(self) -> None:
        """Write the first state of the links, each change, and faster GPUs. Only the training's thread rewrites
        `rank.json`.
        """
        if self._is_new and self._links:
            self._is_new = False
            self._recorder.links = self._links
            self._recorder.write_metadata()

    def _write(self, name: str, details: dict[str, object]) -> None:
        self._counts[name] += 1
        if self._counts[name] <= MAX_EVENTS_PER_NAME and not self._abandoned and self._recorder.active:
            self._recorder.event(name, details)


def _speeds_of_gpus(links: Mapping[str, Mapping[str, Any]]) -> dict[str, float | None]:
    return {name: link["transfers"] for name, link in links.items() if link.get("gpu")}
