"""Hook on the end of the default process group: the training is over, whatever happens to the process then.

Ray kills its workers after their training. Their records have no other end.
"""

import functools
import sys
from typing import Any

from traincope.events import GROUP_DESTROYED
from traincope.record.instrumentation.guard import guard
from traincope.record.instrumentation.patching import Patches
from traincope.record.session.recorder import Recorder


class GroupEnd:
    """Hook on `destroy_process_group`."""

    name = "group_end"
    level = 0

    def __init__(self) -> None:
        self._patches = Patches()

    def install(self, recorder: Recorder) -> None:
        import torch.distributed as dist
        from torch.distributed import distributed_c10d

        self._recorder = recorder
        original, note = distributed_c10d.destroy_process_group, guard(self._note)

        @functools.wraps(original)
        def destroy_process_group(*args: Any, **kwargs: Any) -> Any:
            existed = dist.is_initialized()
            result = original(*args, **kwargs)
            if existed and not dist.is_initialized() and sys.exception() is None:
                note()
            return result

        for module in (distributed_c10d, dist):
            self._patches.replace(module, "destroy_process_group", destroy_process_group)

    def remove(self) -> None:
        self._patches.restore()

    def _note(self) -> None:
        """End the open step if its work is done. An exception on its way leaves it open, so then nothing is noted."""
        self._recorder.steps.end_training()
        self._recorder.event(GROUP_DESTROYED, {})
