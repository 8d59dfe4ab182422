"""What of a tensor is on this rank."""

from torch import Tensor
from torch.distributed.tensor import DTensor, Partial


def local_part(tensor: Tensor) -> Tensor:
    """Its shard if it is cut over ranks, with gradients; all of it otherwise. No copy."""
    part: Tensor = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return part


def replicated_part(tensor: Tensor) -> Tensor:
    """All of a tensor that every rank has whole, where each rank's gradient is its part of a sum."""
    part: Tensor = tensor.to_local(grad_placements=[Partial()]) if isinstance(tensor, DTensor) else tensor
    return part
