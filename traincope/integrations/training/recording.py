"""The run that a framework's callback records into: the active one, or one of its own."""

from collections.abc import Mapping, Sequence
from typing import Any

import traincope
from traincope.events import RESUMED
from traincope.integrations.training.open_trackers import Send
from traincope.integrations.training.trackers import Trackers
from traincope.record.instrumentation.guard import guard
from traincope.record.run import Run, active_run


class UnfinishedTraining(Exception):
    """The ending of a training whose end its framework did not report. It is never raised."""


class Recording:
    """A training of a framework. It joins the run that records already, for example that of `traincope run`.

    Otherwise it begins a run, and ends it with the training. Nothing here raises.
    """

    def __init__(self, run: Run | None) -> None:
        """`run`: the run to begin, with settings; None: `traincope.run()`."""
        self._run = traincope.run() if run is None else run
        self._own: Run | None = None
        self._trackers: Trackers | None = None

    def begin(self, facts: Mapping[str, object]) -> None:
        """Begin or join a run, and describe the training. An earlier one that never ended ends now, as unfinished."""
        guard(self._begin)(facts)

    def train(self, trackers: Sequence[Send] = (), *, step: int = 0) -> None:
        """Begin the steps, once. `step`: the number of steps that the training's state has had."""
        guard(self._train)(trackers, step)

    def log(self, values: Mapping[str, object]) -> None:
        """Log the numbers among `values`."""
        traincope.log(**{name: value for name, value in values.items() if isinstance(value, int | float)})

    def end(self, error: BaseException | None = None) -> None:
        """End the run if it is an own one. `error`: the exception that ended the training."""
        guard(self._end)(error)

    def _begin(self, facts: Mapping[str, object]) -> None:
        self._end(UnfinishedTraining("another training began before this one ended"))
        if active_run() is None:
            self._own = self._run.__enter__()
        active = active_run()
        if active is not None:
            active.describe(**facts)

    def _train(self, trackers: Sequence[Send], step: int) -> None:
        active = active_run()
        if active is None or self._trackers is not None:
            return
        if step:
            traincope.event(RESUMED, step=step)
        self._trackers = Trackers(active, *trackers, step=step)
        self._trackers.start()

    def _end(self, error: BaseException | None) -> None:
        trackers, own, self._trackers, self._own = self._trackers, self._own, None, None
        if trackers is not None:
            trackers.stop()
        if own is not None:
            own.__exit__(type(error) if error is not None else None, error, None)


class NewValues:
    """The new ones among tensors that a framework keeps by name, with those of earlier steps."""

    def __init__(self) -> None:
        self._latest: Mapping[str, Any] = {}
        """Kept alive so that a new value has other memory."""

    def among(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return those with memory of their own. A framework may make a new view of the same value at each look."""
        before, self._latest = self._latest, dict(values)
        return {
            name: value
            for name, value in self._latest.items()
            if name not in before or value.data_ptr() != before[name].data_ptr()
        }
