"""Changes that make a rank need less memory, by the use that takes it, with the effect by formulas of `plan memory`."""

from collections.abc import Mapping
from dataclasses import dataclass

from traincope.analysis.memory.split import ACTIVATIONS, FRAGMENTATION, UNKNOWN_USE, MemorySplit
from traincope.events import MemoryMeasure
from traincope.plan.layout.activations import ActivationPolicy, block_bytes
from traincope.plan.layout.layout import Layout
from traincope.plan.model.flops import Recompute
from traincope.plan.model.transformer import Transformer
from traincope.topology import REPLICA_AXES, SHARD_AXES
from traincope.units import size

REFERENCE = Transformer(layers=1, hidden=64, heads=1, vocabulary=1, sequence=1)
"""A block whose share under recomputation stands for others: with fused attention it does not depend on its sizes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """A change and its predicted effect."""

    text: str
    """An instruction, with the effect."""
    saved_bytes: int | None
    """Bytes that the rank holds less, by formula; None: no formula predicts it."""


def remedy(
    use: str, split: MemorySplit, *, mesh: Mapping[str, int], recomputes: bool = False, expandable: bool = False
) -> Remedy:
    """The remedy for the memory of one use. `mesh`: axis -> its size. `recomputes`: the rank recomputes blocks already.
    `expandable`: its allocator has expandable segments already.
    """
    held = split.parts.get(use, 0)
    replicas = next(((axis, mesh[axis]) for axis in REPLICA_AXES if mesh.get(axis, 1) > 1), None)
    if use == FRAGMENTATION and expandable:
        text = (
            "Use tensors of fewer different sizes (fixed lengths, full last batches): segments are expandable already."
        )
        return Remedy(text=text, saved_bytes=None)
    if use == FRAGMENTATION:
        text = f"Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True: up to {size(held)} become usable."
        return Remedy(text=text, saved_bytes=held)
    if use == ACTIVATIONS:
        return _smaller_microbatch(held) if recomputes else _recompute(held)
    if use == UNKNOWN_USE:
        text = "Release tensors kept from step to step: sum losses with .item(), and empty lists and caches."
        return Remedy(text=text, saved_bytes=None)
    if use == MemoryMeasure.BUFFERS:
        if mesh_shards(mesh):
            text = "Reshard parameters after forward (reshard_after_forward=True), and shard smaller units: one unit's"
            return Remedy(text=f"{text} parameters are then gathered at a time.", saved_bytes=None)
        text = f"Set gradient_as_bucket_view=True in DDP: gradients then lie in its buckets, {size(held)} less."
        return Remedy(text=text, saved_bytes=held)
    if replicas is None:
        return _more_shards(use, held, mesh)
    return _shard(use, split, axis=replicas[0], ranks=replicas[1])


def mesh_shards(mesh: Mapping[str, int]) -> int:
    """Ranks over which parameters are sharded; 0 if no axis of the mesh shards them."""
    return next((mesh[axis] for axis in SHARD_AXES if axis in mesh), 0)


def _smaller_microbatch(held: int) -> Remedy:
    text = (
        f"Halve the microbatch: activations fall from {size(held)} to {size(held // 2)}. Blocks are recomputed already."
    )
    return Remedy(text=text, saved_bytes=held - held // 2)


def _recompute(held: int) -> Remedy:
    """Full recomputation keeps only the input of a block (Korthikanti et al. 2022, table 2)."""
    kept, whole = (
        block_bytes(REFERENCE, layout=Layout(), policy=ActivationPolicy(recompute=kind, flash=True, dropout=False))
        for kind in (Recompute.FULL, Recompute.NONE)
    )
    saved = held - held * kept // whole
    text = (
        f"Recompute the blocks in backward (torch.utils.checkpoint): by formula a transformer's activations fall from "
        f"{size(held)} to {size(held - saved)}. Or halve the microbatch: they fall to {size(held // 2)}."
    )
    return Remedy(text=text, saved_bytes=saved)


def _shard(use: str, split: MemorySplit, *, axis: str, ranks: int) -> Remedy:
    """ZeRO over replicas (Rajbhandari et al. 2019, section 5): stage 1 for the optimizer's state, otherwise stage 3."""
    if use == MemoryMeasure.OPTIMIZER:
        held, how = split.optimizer_bytes, "Shard the optimizer's state (ZeRO stage 1, ZeroRedundancyOptimizer)"
    else:
        held = split.parameters_bytes + split.gradients_bytes + split.optimizer_bytes
        how = "Shard parameters, gradients and optimizer state (FSDP2, ZeRO stage 3)"
    kept = -(-held // ranks)
    text = f"{how} over the {ranks} ranks of {axis}: by formula it falls from {size(held)} to {size(kept)} per rank."
    return Remedy(text=text, saved_bytes=held - kept)


def _more_shards(use: str, held: int, mesh: Mapping[str, int]) -> Remedy:
    """Without replicas only more ranks, or the host's memory, hold less per rank."""
    shards = max(mesh_shards(mesh), 1)
    text = (
        f"Shard over {2 * shards} ranks instead of {shards} (FSDP2): by formula {use} falls from {size(held)} to "
        f"{size(held - held // 2)} per rank. Or offload it to the host's memory."
    )
    return Remedy(text=text, saved_bytes=held // 2)
