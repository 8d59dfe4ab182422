"""Which GPU this process trains on."""

from typing import Any, Protocol


class Cuda(Protocol):
    """What is used of `torch.cuda`."""

    def is_initialized(self) -> bool: ...

    def device_count(self) -> int: ...

    def current_device(self) -> int: ...

    def memory_reserved(self, device: int) -> int: ...

    def get_device_properties(self, device: int) -> Any: ...


def gpu_in_use(cuda: Cuda) -> str | None:
    """CUDA's UUID of the GPU that holds most of this process's tensors; None while none does.

    Not the current device, for a training may say "cuda:1" and never make it current; that is the
    answer only where an allocator of the training's own keeps no counts. It is the calling thread's.
    """
    if not cuda.is_initialized():
        return None
    try:
        reserved = [cuda.memory_reserved(device) for device in range(cuda.device_count())]
    except RuntimeError:
        device = cuda.current_device()
    else:
        if not any(reserved):
            return None
        device = reserved.index(max(reserved))
    return str(cuda.get_device_properties(device).uuid)
