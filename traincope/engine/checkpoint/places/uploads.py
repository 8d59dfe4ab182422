"""Copies complete checkpoints into the bucket in the background, each file by the rank that wrote it.

All ranks start the same uploads: rank 0 decides when a checkpoint is committed, and starts none while a rank is still
sending files of the one before. It learns from the bucket that the others' files have arrived, so that no rank waits
for another in a collective.
"""

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from traincope.engine.checkpoint.manifest import Damaged, Manifest, Missing, read_manifest
from traincope.engine.checkpoint.places.bucket import Bucket, folder_of
from traincope.errors import CheckpointError

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
"""Time between two looks of rank 0 at the files of the other ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """The end of an upload: on rank 0 of a whole checkpoint, on other ranks only a failure."""

    step: int
    seconds: float
    """Time since the checkpoint was complete on this machine."""
    bytes: int
    """Size of all files of the checkpoint."""
    error: str | None
    """Reason why the checkpoint is not in the bucket. None: it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One rank's part of a committed checkpoint."""

    checkpoint: Path
    manifest: Manifest
    names: tuple[str, ...]
    """Files that this rank wrote."""


class Uploads:
    """Uploads of one rank. Nothing but `finish` waits for the network."""

    def __init__(self, bucket: Bucket, *, rank: int, keep: int, report: Callable[[Upload], None]) -> None:
        """`report` is called in another thread at the end of each upload."""
        self._bucket, self._rank, self._keep, self._report = bucket, rank, keep, report
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint upload")
        self._last: Future[None] | None = None
        self._part: Part | None = None
        """The checkpoint whose upload began last."""
        self._held: Part | None = None
        """The newest checkpoint, if its upload has not begun."""
        self._sending = False
        self._enough = Event()
        """Set: rank 0 no longer waits for files of other ranks."""

    @property
    def step(self) -> int | None:
        """Step of the last upload that was started."""
        return None if self._part is None else self._part.manifest.step

    @property
    def sending(self) -> bool:
        """This rank's files are not all in the bucket, and none has failed."""
        return self._sending

    def start(self, part: Part) -> None:
        """Upload a checkpoint. All ranks call it for the same one. Rank 0 gives up waiting for the one before."""
        self._part, self._held, self._sending = part, None, True
        self._enough.set()
        self._enough = Event()
        began = time.perf_counter()
        upload = self._thread.submit(self._upload, part, self._enough)
        self._last = self._thread.submit(self._end, part, began, upload)

    def hold(self, part: Part, *, during: int) -> None:
        """Leave out a checkpoint because the upload of step `during` runs. `finish` uploads it if none follows."""
        self._held = part
        if self._rank == 0:
            self._tell(part, seconds=0.0, error=f"the upload of step {during} still runs")

    def finish(self, *, seconds: float) -> None:
        """Wait at most so long for the upload in flight and for that of the newest checkpoint. Raises nothing."""
        deadline = time.perf_counter() + seconds
        self._wait(deadline)
        if self._held is not None:
            self.start(self._held)
            self._wait(deadline)
        if self._part is not None and self._last is not None and not self._last.done():
            self._enough.set()
            error = f"its upload did not end in {seconds:g} s (checkpoint.upload_wait_seconds)"
            self._tell(self._part, seconds=seconds, error=error)

    def _wait(self, deadline: float) -> None:
        if self._last is not None:
            wait([self._last], timeout=max(0.0, deadline - time.perf_counter()))

    def _upload(self, part: Part, enough: Event) -> None:
        folder = folder_of(part.manifest)
        try:
            for name in part.names:
                self._bucket.upload(part.checkpoint / name, folder)
        finally:
            self._sending = False
        if self._rank == 0:
            self._wait_for_others(part, folder, enough)
            self._require_same(part)
            self._bucket.commit(folder, part.manifest, keep=self._keep)

    def _wait_for_others(self, part: Part, folder: str, enough: Event) -> None:
        last_look = False
        while missing := self._bucket.missing(folder, part.manifest.files):
            if last_look:
                raise CheckpointError(f"{self._bucket.place(folder, missing[0])} has not arrived from its rank")
            last_look = enough.wait(LOOK_SECONDS)

    def _require_same(self, part: Part) -> None:
        """Raise CheckpointError if another checkpoint has its path now, because some files may be of that one."""
        try:
            same = read_manifest(part.checkpoint).digest == part.manifest.digest
        except Missing:  # removed, because newer ones are complete
            return
        except Damaged:
            same = False
        if not same:
            raise CheckpointError(f"{part.checkpoint} was replaced during its upload")

    def _end(self, part: Part, began: float, upload: "Future[None]") -> None:
        """Report the end of an upload. A callback of the future could run after `wait` has returned."""
        error, seconds = upload.exception(), time.perf_counter() - began
        if error is not None or self._rank == 0:
            self._tell(part, seconds=seconds, error=None if error is None else str(error))

    def _tell(self, part: Part, *, seconds: float, error: str | None) -> None:
        step = part.manifest.step
        if error is not None:
            logger.warning("the checkpoint of step %d is not in %s: %s", step, self._bucket.url, error)
        size = sum(saved.bytes for saved in part.manifest.files.values())
        self._report(Upload(step=step, seconds=seconds, bytes=size, error=error))
