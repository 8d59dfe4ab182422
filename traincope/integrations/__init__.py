"""One line each for frameworks that train with torch, and for trackers.

    from traincope.integrations import HuggingFaceCallback
    trainer = Trainer(..., callbacks=[HuggingFaceCallback()])

Each adds what an observer from outside cannot know: tokens, and the values that the training logs. A framework is
imported when its name is used.
"""

from importlib import import_module

_MODULES = {
    "AccelerateTracker": "accelerate",
    "DeepSpeedMonitor": "deepspeed",
    "HuggingFaceCallback": "hugging_face",
    "LightningCallback": "lightning",
    "RayTrainCallback": "ray_train",
    "TorchTitanMetrics": "torchtitan",
    "torchtitan_log": "torchtitan_log",
    "Trackers": "training.trackers",
}
"""Public name -> the module of this folder that defines it."""

__all__ = list(_MODULES)


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(f"{__name__}.{_MODULES[name]}")
    except ImportError as error:
        remedy = "`traincope run -- COMMAND` records without it; docs/start/integrations.md has tested versions"
        raise ImportError(f"traincope's {name} does not fit the packages of this Python: {error}. {remedy}") from error
    return getattr(module, name)
