"""Hook on gradient scaling: steps that a scaler skipped because the gradients overflowed."""

import functools
from typing import Any

from traincope.record.instrumentation.guard import guard
from traincope.record.instrumentation.patching import Patches
from traincope.record.session.recorder import Recorder


class GradientScaling:
    """Hook on `torch.amp.GradScaler`. It is updated once per step, whether or not the optimizer ran."""

    name = "grad_scaler"
    level = 0

    def __init__(self) -> None:
        self._patches = Patches()

    def install(self, recorder: Recorder) -> None:
        from torch.amp import GradScaler

        original = GradScaler.update
        scaler_updated = guard(recorder.steps.scaler_updated)

        @functools.wraps(original)
        def update(scaler: Any, /, *args: Any, **kwargs: Any) -> Any:
            result = original(scaler, *args, **kwargs)
            if recorder.active:
                scaler_updated()
            return result

        self._patches.replace(GradScaler, "update", update)

    def remove(self) -> None:
        self._patches.restore()
