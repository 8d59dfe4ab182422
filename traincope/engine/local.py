"""What of a tensor is on this rank."""

from torch import Tensor
from torch.distributed.tensor import DTensor


def local_part(tensor: Tensor) -> Tensor:
    """Its shard if it is cut over ranks, with gradients; all of it otherwise. No copy."""
    part: Tensor = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return part
