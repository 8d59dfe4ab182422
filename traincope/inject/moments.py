"""The steps and phases of any training, from torch's own global hooks.

A step ends when the first optimizer that steps has stepped. Of the calls of a phase in one step, the first counts.
"""

import functools
from collections.abc import Callable
from typing import Any

from traincope.inject.injection import Moment

Action = Callable[[int], None]
"""Called with the step."""


class Moments:
    """Calls actions at the places of a step."""

    def __init__(self) -> None:
        self.step = 0
        self._actions: dict[Moment, list[Action]] = {moment: [] for moment in Moment}
        self._reached: set[Moment] = set()
        """Moments that this step has had."""
        self._anchor: Any = None

    def at(self, moment: Moment, action: Action) -> None:
        self._actions[moment].append(action)

    def watch(self) -> None:
        """Install the hooks, for the rest of the process."""
        import torch
        from torch.autograd import graph
        from torch.nn.modules.module import register_module_forward_pre_hook
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
        from torch.utils.data.dataloader import _BaseDataLoaderIter

        register_module_forward_pre_hook(self._forward)
        register_optimizer_step_pre_hook(self._optimizer_begins)
        register_optimizer_step_post_hook(self._optimizer_stepped)
        engine = self._before(Moment.BACKWARD, graph._engine_run_backward)
        for module in (graph, torch.autograd):  # what the recorder wraps in turn: the delay is a part of the backward
            module._engine_run_backward = engine  # type: ignore[attr-defined]
        _BaseDataLoaderIter.__next__ = self._before(Moment.DATA, _BaseDataLoaderIter.__next__)  # type: ignore[method-assign]

    def parameters(self) -> list[Any]:
        """Return the parameters of the optimizer that ends the steps."""
        return [parameter for group in self._anchor.param_groups for parameter in group["params"]]

    def _reach(self, moment: Moment) -> None:
        if moment not in self._reached:
            self._reached.add(moment)
            for action in self._actions[moment]:
                action(self.step)

    def _before(self, moment: Moment, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            self._reach(moment)
            return original(*args, **kwargs)

        return call

    def _forward(self, module: Any, _arguments: Any) -> None:
        if module.training:
            self._reach(Moment.FORWARD)

    def _optimizer_begins(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        self._anchor = self._anchor or optimizer
        if optimizer is self._anchor:
            self._reach(Moment.OPTIMIZER)

    def _optimizer_stepped(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if optimizer is self._anchor:
            self._reach(Moment.END)
            self._reached.clear()
            self.step += 1
