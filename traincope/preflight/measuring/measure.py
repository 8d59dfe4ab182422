"""The whole preflight on one rank."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import chain
from typing import TypeVar

import torch
import torch.distributed as dist

from traincope.engine.config import Config
from traincope.engine.precision.formats import FORMATS
from traincope.engine.ranks.mesh import build_layout
from traincope.engine.ranks.together import Together
from traincope.preflight.judging.links import suspects
from traincope.preflight.measurements import Measurements, Place, Round, Settings
from traincope.preflight.measuring.collectives import axis_groups, measure_collectives, neighbours
from traincope.preflight.measuring.computing import measure_rates
from traincope.preflight.measuring.messages import measure_pairings
from traincope.preflight.measuring.training import measure_training
from traincope.preflight.pairing import Pair, Pairing, first_round, pair, second_round
from traincope.record.session.environment import processor
from traincope.record.session.identity import this_host
from traincope.units import count

Each = TypeVar("Each")

SECOND_ROUND = 2
"""Repeats of the second round of pairings, as a multiple of the first's: it has few pairs."""


def measure(
    config: Config, settings: Settings, *, local_rank: int, device: torch.device, report: Callable[[str], None]
) -> Measurements:
    """Measure on all ranks, which call it together; all return the same. `report` receives what begins."""
    world = dist.group.WORLD
    assert world is not None
    together = Together(world)
    rank, repeats = together.rank, settings.repeats
    report("matrix products and memory")
    dtype = FORMATS[config.train.precision].compute
    rates = measure_rates(rank=rank, dtype=dtype, device=device, repeats=repeats)
    places = tuple(together.all(_place(rank, local_rank=local_rank, device=device)))
    groups = axis_groups(build_layout(config.parallel, device=device))
    edges = _neighbours(together, groups)
    measured = Measurements(places=places, neighbours=edges, rates=_flat(together.all(rates)))

    def messages(round: Round, pairings: tuple[Pairing, ...], repeats: int) -> Measurements:
        own = measure_pairings(pairings, round=round, rank=rank, device=device, repeats=repeats)
        return replace(measured, pairs=measured.pairs + _flat(together.all(own)))

    report("messages between pairs of ranks")
    axis_pairs = {each for pairs in edges.values() for each in pairs}
    ring = {pair(each, (each + 1) % together.size) for each in range(together.size) if together.size > 1}
    first = first_round(together.size, axis_pairs | ring)
    measured = messages(Round.FIRST, first, repeats)
    report("slow pairs again, with other partners")
    hosts = [place.host for place in places]
    again = second_round([each for pairing in first for each in pairing], suspects(measured), hosts=hosts)
    measured = messages(Round.SECOND, again, SECOND_ROUND * repeats)
    report("collectives on each axis of the mesh")
    swept = measure_collectives(groups, rank=rank, device=device, repeats=repeats)
    measured = replace(measured, sweeps=_flat(together.all(swept)))
    if settings.steps:
        report(f"{count(settings.steps, 'step')} of the training")
    training = measure_training(config, together=together, device=device, steps=settings.steps)
    return replace(measured, training=training)


def _place(rank: int, *, local_rank: int, device: torch.device) -> Place:
    host = this_host().name
    if device.type == "cpu":
        return Place(rank=rank, host=host, local_rank=local_rank, device=processor())
    properties = torch.cuda.get_device_properties(device)
    return Place(
        rank=rank,
        host=host,
        local_rank=local_rank,
        device=properties.name,
        gpu=f"GPU {device.index} ({properties.uuid})",
    )


def _neighbours(together: Together, groups: dict[str, dist.ProcessGroup]) -> dict[str, tuple[Pair, ...]]:
    of_ranks = together.all({axis: tuple(neighbours(group)) for axis, group in groups.items()})
    return {axis: tuple(sorted({each for edges in of_ranks for each in edges[axis]})) for axis in groups}


def _flat(of_ranks: Iterable[tuple[Each, ...]]) -> tuple[Each, ...]:
    return tuple(chain.from_iterable(of_ranks))
