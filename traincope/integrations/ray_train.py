"""Callback for Ray Train."""

from collections.abc import Callable
from typing import Any

import ray
from ray.train.v2._internal.execution.callback import WorkerCallback
from ray.train.v2._internal.execution.context import get_train_context

import traincope
from traincope.integrations.training.recording import Recording
from traincope.record.instrumentation.guard import guard


class RayTrainCallback(WorkerCallback):  # type: ignore[misc]
    """Records each worker's training, with the numbers that it passes to `ray.train.report`.

    >>> trainer = TorchTrainer(train, run_config=RunConfig(callbacks=[RayTrainCallback()]))

    Ray copies the callback to the workers, so it takes settings instead of a run.
    """

    def __init__(self, **settings: Any) -> None:
        """`settings`: those of `traincope.run`. They are not used if another run records already."""
        self._settings = settings
        self._recording: Recording | None = None

    def after_init_train_context(self) -> None:
        guard(self._begin)()

    def before_worker_shutdown(self) -> None:
        guard(self._end)()

    def _begin(self) -> None:
        context = get_train_context()
        self._recording = Recording(traincope.run(**self._settings))
        self._recording.begin({"trainer": f"ray {ray.__version__}"})
        context.report = self._logging(context.report)

    def _logging(self, report: Callable[..., Any]) -> Callable[..., Any]:
        log = guard(self._log)

        def logged(metrics: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
            log(metrics)
            return report(metrics, *args, **kwargs)

        return logged

    def _log(self, metrics: dict[str, Any]) -> None:
        if self._recording is not None:
            self._recording.train()
            self._recording.log(metrics)

    def _end(self) -> None:
        """Ray keeps the exception that ended the training in the thread that ran it."""
        if self._recording is not None:
            self._recording.end(get_train_context().execution_context.training_thread_runner.get_error())
