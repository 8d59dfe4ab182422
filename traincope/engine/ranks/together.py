"""Steps that all ranks of a group take together, with their values and errors."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

from traincope.errors import TraincopeError

Value = TypeVar("Value")


class Together:
    """A process group. All its ranks call each method together."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)

    def first(self, value: Value | None, *, source: int = 0) -> Value:
        """The value of rank `source`, on all ranks. The others' values do not count."""
        received: list[Any] = [value if self.rank == source else None]
        dist.broadcast_object_list(received, src=dist.get_global_rank(self.group, source), group=self.group)
        result: Value = received[0]
        return result

    def all(self, value: Value) -> list[Value]:
        """Each rank's value, on all ranks."""
        received: list[Any] = [None] * self.size
        dist.all_gather_object(received, value, group=self.group)
        return received

    def at_first(self, value: Value) -> list[Value] | None:
        """Each rank's value, on rank 0; None on the others, which do not receive them."""
        received: list[Any] | None = [None] * self.size if self.rank == 0 else None
        dist.gather_object(value, received, dst=dist.get_global_rank(self.group, 0), group=self.group)
        return received

    def do(self, step: Callable[[], Value]) -> Value:
        """Take a step on each rank, and return after all have. Raises the lowest rank's TraincopeError on all ranks."""
        result: list[Value] = []
        error = None
        try:
            result.append(step())
        except TraincopeError as raised:
            error = raised.with_traceback(None)
        for each in self.all(error):
            if each is not None:
                raise each
        return result[0]
