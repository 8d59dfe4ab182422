"""Hook on the making of process groups: a span with the line that makes it, and torch's number of the group.

torch names a group by how many the process has made, and its members meet by that name. So all ranks must make all
groups, also those without them. A rank that leaves one out waits in its next one under another name than the others.
"""

import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from traincope.events import NEW_GROUP, Flag, Kind
from traincope.record.communication.objects import training_site
from traincope.record.instrumentation.guard import guard
from traincope.record.instrumentation.patching import Patches
from traincope.record.instrumentation.torch_private import group_maker, num_named_groups
from traincope.record.segments.slots import Slot, add_flag, end
from traincope.record.session.recorder import Recorder

BY_MEMBERS = "use_local_synchronization"
"""Argument with which only the members make a group, under a name of their own."""


class NewGroups:
    """Hook on the function in which torch makes every group but the first."""

    name = "new_groups"
    level = 1

    def __init__(self) -> None:
        self._patches = Patches()

    def install(self, recorder: Recorder) -> None:
        import torch.distributed as dist

        if not dist.is_available():
            raise RuntimeError("this torch is built without torch.distributed")
        self._recorder = recorder
        module, name = group_maker()
        num_named_groups()  # fails here, if this torch lacks it
        self._patches.replace(module, name, self._recorded(getattr(module, name)))

    def remove(self) -> None:
        self._patches.restore()

    def _recorded(self, original: Callable[..., Any]) -> Callable[..., Any]:
        recorder = self._recorder
        begin, finish = guard(self._begin), guard(_finish)

        @functools.wraps(original)
        def made(*args: Any, **kwargs: Any) -> Any:
            if not recorder.active or kwargs.get(BY_MEMBERS):
                return original(*args, **kwargs)
            slot, raised = begin(sys._getframe(1)), True
            try:
                result = original(*args, **kwargs)
                raised = False
                return result
            finally:
                if slot is not None:
                    finish(slot, raised)

        return made

    def _begin(self, caller: FrameType) -> Slot:
        name = self._recorder.names.intern(f"{NEW_GROUP}{training_site(caller) or ''}")
        return self._recorder.writer().begin(Kind.SPAN, name=name, sequence=num_named_groups())


def _finish(slot: Slot, raised: bool) -> None:
    if raised:
        add_flag(slot, Flag.RAISED)
    end(slot)
