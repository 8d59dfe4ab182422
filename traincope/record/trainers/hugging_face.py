"""transformers: generation by a model that is being trained."""

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from traincope.record.instrumentation.patching import Patches

MODULE = "transformers.generation.utils"
CLASS = "GenerationMixin"


def patch(module: ModuleType, patches: Patches, begin: Callable[..., Any], **_: Any) -> None:
    """Make each outermost `generate` a part. In evaluation mode it is an evaluation, or in a part of the training's."""
    mixin = getattr(module, CLASS)
    original = mixin.generate

    @functools.wraps(original)
    def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
        part = begin("generate", nested=False) if getattr(self, "training", False) else None
        try:
            return original(self, *args, **kwargs)
        finally:
            if part is not None:
                part.end()

    patches.replace(mixin, "generate", generate)
