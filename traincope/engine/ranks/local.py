"""The local part of a distributed tensor."""

from torch import Tensor
from torch.distributed.tensor import DTensor, Partial


def local_part(tensor: Tensor) -> Tensor:
    """This rank's shard of a DTensor, with gradients; a plain tensor as it is. No copy."""
    part: Tensor = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return part


def replicated_part(tensor: Tensor) -> Tensor:
    """Local copy of a replicated tensor, where each rank's gradient is a part of a sum."""
    part: Tensor = tensor.to_local(grad_placements=[Partial()]) if isinstance(tensor, DTensor) else tensor
    return part
