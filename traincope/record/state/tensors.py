"""Tensors of the training's state: each parameter of an optimizer, and the optimizer's own tensors for it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from traincope.record.state.checksum import is_dense
from traincope.record.state.replicas import KnownParameters, replica_ranks
from traincope.store.job.state_checks import StateTensor

MAX_TENSORS = 16_384
"""Most tensors of an optimizer that are checked. Further ones lower the coverage."""


@dataclass(frozen=True, slots=True)
class LocalTensor:
    """This rank's part of a tensor, and its description."""

    described: StateTensor
    local: Any
    """A plain tensor; None if its bytes cannot be read."""
    identity: tuple[int, int, int]
    """Changes if the program replaces the tensor or changes it in place: identity, address, and torch's version.

    A write through `.data` does not change it, and neither does memory that goes bad.
    """


def state_tensors(optimizers: Sequence[Any], known: KnownParameters) -> Iterator[LocalTensor]:
    """Yield what the optimizers update, in a fixed order. An optimizer may wrap others (ZeroRedundancyOptimizer)."""
    seen: set[int] = set()
    for number, optimizer in enumerate(optimizers):
        for group_number, group in enumerate(optimizer.param_groups):
            for at, parameter in enumerate(group["params"]):
                place = f"parameter {at} of group {group_number}" + (f" of inner optimizer {number}" if number else "")
                name, ranks = known.names.get(id(parameter), place), known.ddp_ranks.get(id(parameter), ())
                ranks = replica_ranks(parameter, also=ranks)
                if id(parameter) not in seen:
                    yield _local(parameter, name, None, ranks, is_checked=len(seen) < MAX_TENSORS)
                    seen.add(id(parameter))
                for key, value in _leaves(optimizer.state.get(parameter)):
                    if id(value) not in seen:
                        yield _local(value, name, key, ranks, is_checked=len(seen) < MAX_TENSORS)
                        seen.add(id(value))


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (path, tensor) of all tensors in nested dictionaries and lists."""
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, (list, tuple)):
        items = list(enumerate(value))
    else:
        if hasattr(value, "untyped_storage"):
            yield path, value
        return
    for key, inner in items:
        yield from _leaves(inner, f"{path}.{key}" if path else str(key))


def _local(tensor: Any, name: str, key: str | None, ranks: tuple[int, ...], *, is_checked: bool) -> LocalTensor:
    """Describe a tensor. A plain tensor of a replicated parameter's state is replicated too; shards are DTensors."""
    import torch

    if hasattr(tensor, "placements"):
        local, ranks = tensor.to_local(), (ranks if key is None else replica_ranks(tensor))
    else:
        local = tensor
    is_plain = type(local) in (torch.Tensor, torch.nn.Parameter) and local.layout is torch.strided
    local = local.detach() if is_plain and is_checked and not local.is_meta and is_dense(local) else None
    source = tensor if local is None else local
    return LocalTensor(
        described=StateTensor(
            parameter=name,
            state=key,
            dtype=str(tensor.dtype).removeprefix("torch."),
            num_bytes=source.numel() * source.element_size(),
            replicas=ranks,
            checked=local is not None,
        ),
        local=local,
        identity=(id(tensor), 0 if local is None else local.data_ptr(), 0 if local is None else local._version),
    )
