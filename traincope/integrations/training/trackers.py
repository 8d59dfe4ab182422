"""Numbers of the running job in the training's own tracker: MFU, exposed communication, bubble, overhead.

The node's agent computes them (`metrics/scalars.py`) and keeps the latest in a file. A thread on rank 0 reads it and
passes each new look on, as ordinary scalars. The training thread does nothing for it.
"""

import json
import threading
from collections.abc import Mapping
from typing import Any, Self

from traincope.integrations.training.open_trackers import Send, open_trackers
from traincope.record.instrumentation.guard import guard
from traincope.record.run import Run
from traincope.record.session.identity import this_host
from traincope.store.layout import attempt_directory, scalars_file

POLL_SECONDS = 1.0
STOP_SECONDS = 1.0
"""Maximum time that the end of a training waits for a tracker that is just receiving values."""


class Trackers:
    """Thread that passes the agent's scalars to trackers. Other ranks than 0 pass nothing. Nothing here raises.

    >>> with traincope.run() as run, Trackers(run):
    ...     train()
    """

    def __init__(self, run: Run, *sends: Send, step: int = 0) -> None:
        """`sends`: default: the open runs of wandb and MLflow. `step`: steps that the training has had before."""
        self._run = run
        self._sends = [guard(send) for send in sends or open_trackers()]
        self._steps_before = step - run.num_steps
        self._latest: object = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=guard(self._work), name="traincope-trackers", daemon=True)

    def start(self) -> None:
        """Start the thread, if there is a tracker."""
        if self._sends:
            guard(self._thread.start)()

    def stop(self) -> None:
        """Pass the latest values on, and stop. Waits for at most `STOP_SECONDS`."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _work(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._stopped.wait(POLL_SECONDS)
            place = self._run.place
            if place is not None and place.rank:
                return
            if place is not None:
                self._look(attempt_directory(place.run, place.attempt) / scalars_file(this_host().name))

    def _look(self, path: Any) -> None:
        """Pass the scalars on if they are new."""
        try:
            latest: Mapping[str, Any] = json.loads(path.read_bytes())
        except FileNotFoundError:
            return
        if latest["step"] != self._latest:
            self._latest = latest["step"]
            for send in self._sends:
                send(dict(latest["values"]), latest["step"] + 1 + self._steps_before)
