"""Copies of small tensors from the training's device, without waiting for it."""

from typing import Any


class HostCopy:
    """A tensor on its way to the host. On a CPU it is there at once."""

    def __init__(self, tensor: Any) -> None:
        import torch

        self._event: Any = None
        self.tensor: Any = tensor
        """The copy; it may be read once it has arrived."""
        if tensor.device.type != "cuda":
            self.tensor = tensor.cpu()
        else:
            self.tensor = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
            self.tensor.copy_(tensor, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record(torch.cuda.current_stream(tensor.device))

    @property
    def arrived(self) -> bool:
        return self._event is None or bool(self._event.query())


def is_capturing() -> bool:
    """Return whether the training captures a CUDA graph. Nothing may be copied or queried then."""
    import torch

    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
