"""Steps that a gradient scaler skipped because the gradients overflowed."""

import functools
from typing import Any

from traincope.record.guard import guard
from traincope.record.patching import Patches
from traincope.record.recorder import Recorder


class GradientScaling:
    """Hook on `torch.amp.GradScaler`: it is updated once a step, whether the optimizer ran or not."""

    name = "grad_scaler"
    level = 0

    def __init__(self) -> None:
        self._patches = Patches()

    def install(self, recorder: Recorder) -> None:
        from torch.amp import GradScaler

        original = GradScaler.update
        skipped = guard(recorder.steps.skipped)

        @functools.wraps(original)
        def update(scaler: Any, /, *args: Any, **kwargs: Any) -> Any:
            result = original(scaler, *args, **kwargs)
            if recorder.active:
                skipped()
            return result

        self._patches.replace(GradScaler, "update", update)

    def remove(self) -> None:
        self._patches.restore()
