"""Bytes of a rank's tensors by their use: parameters, gradients, optimizer state, communication buffers.

The modules and optimizers are those that the training calls. A byte counts once, under the first use that applies, in
the order above: tensors that share a storage are views of the same bytes. Of a distributed tensor, the local shard
counts.

Communication buffers are what a wrapper holds besides the rank's own shards and gradients: DDP's buckets, and the
parameters that FSDP2 has gathered. What is inside of NCCL is not visible.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from traincope.record.compute.memory.used import Used
from traincope.record.instrumentation.torch_private import fsdp_parameters, has_storage, without_functions

Sums = tuple[int, int, int, int]
"""Bytes of parameters, gradients, optimizer state and communication buffers: the order of `events.HELD`."""


class TensorBytes:
    """Counter of the tensors on one kind of device."""

    def __init__(self, modules: Used, optimizers: Used, *, device_type: str) -> None:
        self._modules, self._optimizers, self._device_type = modules, optimizers, device_type
        self._counted: tuple[int, ...] = ()
        self._sums: Sums = 0, 0, 0, 0

    def count(self) -> Sums:
        """Count now. A set of tensors that is the same as at the last count is not counted again."""
        from torch import no_grad

        with without_functions(), no_grad():
            modules = list({id(module): module for root in self._modules for module in root.modules()}.values())
            parameters, gradients, gathered = _of_modules(modules)
            states = list(_of_optimizers(self._optimizers))
            uses = (parameters, gradients, states, gathered)
            # The identities of gathered parameters stay when FSDP2 frees their storage.
            held = tuple(id(tensor) for tensors in uses for tensor in tensors)
            counted = (*held, *(tensor.untyped_storage().nbytes() for tensor in gathered))
            if counted != self._counted:
                seen: set[int] = set()
                *sums, buffers = (self._bytes(tensors, seen) for tensors in uses)
                self._sums, self._counted = (*sums, buffers + self._buckets(modules)), counted  # type: ignore[assignment]
            return self._sums

    def _bytes(self, tensors: Iterable[Any], seen: set[int]) -> int:
        """Bytes of the tensors' storages that are not in `seen`, by address, which they are added to."""
        total = 0
        for tensor in tensors:
            for local in filter(has_storage, _local(tensor)):
                storage = local.untyped_storage()
                if storage.device.type == self._device_type and (size := storage.nbytes()):
                    address = storage.data_ptr()
                    if address not in seen:
                        seen.add(address)
                        total += size
        return total

    def _buckets(self, modules: Iterable[Any]) -> int:
        """Bytes of DDP's buckets, without those that gradients are views of.

        The buckets of a wrapper together have the size of its parameters with gradients.
        """
        from torch.nn.parallel import DistributedDataParallel

        total = 0
        for wrapper in modules:
            if not isinstance(wrapper, DistributedDataParallel):
                continue
            ignored = set(wrapper.parameters_to_ignore)
            reduced = [
                parameter
                for name, parameter in wrapper.module.named_parameters()
                if parameter.requires_grad and name not in ignored and parameter.device.type == self._device_type
            ]
            if wrapper.gradient_as_bucket_view:
                reduced = [parameter for parameter in reduced if parameter.grad is None]
            total += sum(parameter.numel() * parameter.element_size() for parameter in reduced)
        return total


def _of_modules(modules: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
    """Parameters, gradients, and parameters that FSDP2 has gathered."""
    parameters: dict[int, Any] = {}
    gathered: dict[int, Any] = {}
    gradients: list[Any] = []
    replaced: set[int] = set()
    for module in modules:
        for shard, whole, buffers, unreduced in fsdp_parameters(module):
            parameters[id(shard)] = shard
            gathered |= {id(buffer): buffer for buffer in buffers}
            gradients += unreduced
            replaced.add(id(whole))
    for module in modules:
        for parameter in module.parameters(recurse=False):
            if id(parameter) not in replaced:
                parameters[id(parameter)] = parameter
    leaves = (parameter for parameter in parameters.values() if parameter.is_leaf)  # torch warns about others
    gradients += [leaf.grad for leaf in leaves if leaf.grad is not None]
    return list(parameters.values()), gradients, list(gathered.values())


def _of_optimizers(optimizers: Iterable[Any]) -> Iterator[Any]:
    """State, and parameters of optimizers that no module has: master weights.

    Those that a module has count as parameters, because these are counted first.
    """
    for optimizer in optimizers:
        for state in tuple(optimizer.state.values()):
            if isinstance(state, dict):
                yield from _tensors_in(state.values())
        for group in optimizer.param_groups:
            yield from group["params"]


def _tensors_in(values: Iterable[Any]) -> Iterator[Any]:
    """Tensors among values and in lists of them, which some optimizers keep as state."""
    from torch import Tensor

    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from (each for each in value if isinstance(each, Tensor))


def _local(tensor: Any) -> Iterator[Any]:
    """Tensors with storage of their own inside of a tensor, e.g. the local shard of a DTensor."""
    import torch
    from torch import Tensor

    if tensor.layout is torch.sparse_coo:
        yield from (tensor._indices(), tensor._values())
        return
    if not hasattr(tensor, "__tensor_flatten__"):
        yield tensor
        return
    names, _ = tensor.__tensor_flatten__()
    for name in names:
        inner = getattr(tensor, name)
        if isinstance(inner, Tensor):
            yield from _local(inner)
