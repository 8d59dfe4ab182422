"""The answer of `plan search`: the object that `--format json` prints, and that the text and the pages show."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TypedDict

from traincope.plan.layout.families import LEVEL
from traincope.plan.layout.layout import Place
from traincope.plan.layout.machine import Machine
from traincope.plan.layout.memory import LEFT_OUT
from traincope.plan.layout.operators import Kind, is_repeated, operators
from traincope.plan.model.precision import Precision
from traincope.plan.model.transformer import Transformer
from traincope.plan.search.caveats import caveats, checked, interval
from traincope.plan.search.clusters import Accelerator, Cluster
from traincope.plan.search.collectives import Curve, curves
from traincope.plan.search.explanation import differences, parts
from traincope.plan.search.job import Job, outcome
from traincope.plan.search.rates import MeasuredLink
from traincope.plan.search.search import FLASH, Candidate, Found
from traincope.units import count, duration, flops, gigabytes_per_second, share

NUM_COMPARED = 3
SECOND_NS = 1e9


class Axis(TypedDict):
    axis: str
    tier: str
    """Slowest links: domain, rail or spine."""
    algorithm: str
    seconds: float
    """Time on the wire in a step."""
    exposed_seconds: float


class Memory(TypedDict):
    """Bytes of the fullest rank; they sum to `largest_bytes`."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    temporary: int


class Interval(TypedDict):
    """Step times between which a step is expected to lie with probability `level`."""

    level: float
    low_seconds: float
    """With software and a cluster like those of the published trainings; so is `high_seconds`."""
    high_seconds: float
    other_low_seconds: float
    """With other software or another kind of cluster; so is `other_high_seconds`."""
    other_high_seconds: float


class Operator(TypedDict):
    """Operators of one kind in a microbatch."""

    name: str
    kind: str
    """product, attention or memory: what limits it."""
    count: int
    """Times in the forward of all blocks."""
    flops: float
    """FLOPs of one of them in forward on one rank."""
    moved_bytes: float
    intensity: float
    """FLOPs per byte."""
    least_seconds: float
    """Lower bound of one forward by the peak and by the memory's bandwidth."""
    forward_seconds: float
    """Expected time of one forward; so is `backward_seconds` of one backward."""
    backward_seconds: float
    step_seconds: float
    """Time of all of them in a step with recomputation, mean of the ranks of a pipeline."""
    reached_ratio: float
    """Lower bound over expected time of one forward."""
    constants: str
    """Constants that the expected time stands on."""


class Ranked(TypedDict):
    """A layout with its prediction."""

    dp: int
    tp: int
    pp: int
    cp: int
    ep: int
    zero: int
    replicas: int
    """Groups of data ranks that each have all shards (HSDP)."""
    node_ranks: int | None
    """Ranks that share ZeRO++'s copy of the weights (hpZ)."""
    quantized: bool
    """Weights and gradients travel as int8 (ZeRO++'s qwZ and qgZ)."""
    optimizer_place: str
    """Place of the optimizer's state: device, cpu or nvme; so is `parameters_place` of ZeRO-3's weights."""
    parameters_place: str
    schedule: str
    virtual: int
    """Stages per pipeline rank."""
    microbatches: int
    micro_batch: int
    recompute: str
    largest_bytes: int
    """Memory of the fullest rank."""
    memory: Memory
    host_bytes: int
    """Bytes of the fullest rank in the CPU's memory; `nvme_bytes` are those on local disks."""
    nvme_bytes: int
    step_seconds: float
    interval: Interval | None
    """None if no published training covers the layout."""
    mfu: float
    bubble_ratio: float
    tokens_per_second: float
    parts: dict[str, float]
    """Part of the step -> seconds; they sum to `step_seconds`."""
    axes: list[Axis]
    operators: list[Operator]
    days: float
    """Time of all steps, without failures and checkpoints."""
    goodput_ratio: float
    elapsed_days: float
    mtbf_hours: float
    checkpoint_seconds: float
    """Daly's interval."""
    gpu_hours: float
    money: float | None
    energy_mwh: float | None
    """Upper bound: at the power limit of all devices."""


class Comparison(TypedDict):
    """A slower layout, compared with the fastest."""

    place: int
    """Place in `ranked`, counted from 1."""
    more_seconds: float
    parts: dict[str, float]
    """Part of the step -> seconds more than in the fastest layout; largest difference first."""


class Smallest(TypedDict):
    """Layout that does not fit and needs least memory, without and with offload."""

    dp: int
    tp: int
    pp: int
    cp: int
    ep: int
    zero: int
    replicas: int
    node_ranks: int | None
    quantized: bool
    optimizer_place: str
    parameters_place: str
    micro_batch: int
    recompute: str
    needed_bytes: int


class Answer(TypedDict):
    gpu: str
    gpus: int
    usable_bytes: int
    """Memory of a device that a layout may fill."""
    peak_flops: float
    """Dense FLOP/s of a device by its data sheet."""
    memory_bytes_per_second: float | None
    """Memory bandwidth of a device by its data sheet."""
    parameters: int
    sequence: int
    batch: int
    tokens: float
    currency: str | None
    """Currency of all money, as USD; null without a price."""
    ranked: list[Ranked]
    num_fitting: int
    checked: str
    """Trainings that such predictions were compared with, and their error."""
    caveats: list[str]
    """Reasons not to rely on the prediction of the fastest layout."""
    comparisons: list[Comparison]
    rejected: dict[str, int]
    """Reason -> number of layouts."""
    smallest: Smallest | None
    collectives: list[Curve]
    """Time of an all-reduce over the message's size, for each tier of links."""
    constants: dict[str, float]
    """Constants that are fitted, not printed by a data sheet."""
    constants_source: str
    """Trainings on which they are fitted."""
    measured: str | None
    """Measured rates in place of those of data sheets, in words; null without `--like`."""
    convention: str
    left_out: str
    sources: list[str]


CONSTANTS_OF = {
    Kind.PRODUCT: ("product", "depth", "copies"),
    Kind.ATTENTION: ("attention", "attention_head", "attention_tokens"),
    Kind.MEMORY: ("copies",),
}
"""Limit of an operator -> the constants of `layout.kernels` that its time stands on."""
CONVENTION = "which counts the half of attention that a causal mask leaves"


def to_answer(found: Found, *, shape: Transformer, cluster: Cluster, batch: int, job: Job) -> Answer:
    accelerator, machine = cluster.accelerator, cluster.machine()
    sheet = replace(cluster, rates=None).machine()
    return Answer(
        gpu=accelerator.spec.name,
        gpus=cluster.gpus,
        usable_bytes=cluster.memory_bytes,
        peak_flops=sheet.peak_flops,
        memory_bytes_per_second=sheet.memory_bytes_per_second,
        parameters=shape.parameters,
        sequence=shape.sequence,
        batch=batch,
        tokens=job.tokens,
        currency=None if job.price_per_gpu_hour is None else job.currency,
        ranked=[_ranked(each, job, shape=shape, cluster=cluster) for each in found.ranked],
        num_fitting=found.num_fitting,
        checked=checked(
            measured=cluster.rates is not None,
            kernels=cluster.rates is not None and cluster.rates.kernels is not None,
        ),
        caveats=list(
            caveats(
                found.ranked[0].layout,
                accelerator,
                shape=shape,
                measured=cluster.rates is not None,
            )
        )
        if found.ranked
        else [],
        comparisons=[
            _comparison(place, found.ranked[0], other)
            for place, other in enumerate(found.ranked[1 : 1 + NUM_COMPARED], start=2)
        ],
        rejected=dict(found.rejected),
        smallest=_smallest(found),
        collectives=curves(machine, ranks=cluster.gpus),
        constants=fitted_constants(machine),
        constants_source=_constants_source(cluster),
        measured=_measured(cluster),
        convention=CONVENTION,
        left_out=LEFT_OUT,
        sources=list(dict.fromkeys(_sources(found, accelerator))),
    )


def _sources(found: Found, accelerator: Accelerator) -> Iterator[str]:
    yield accelerator.spec.source
    yield accelerator.source
    if accelerator.host is not None and any(each.layout.updates_on_cpu for each in found.ranked):
        yield accelerator.host.source


def _constants_source(cluster: Cluster) -> str:
    source = cluster.accelerator.family.source
    if cluster.rates is None or cluster.rates.kernels is None:
        return source
    return f"{cluster.rates.source} (products, attention, copies), and on {source}"


def _measured(cluster: Cluster) -> str | None:
    rates = cluster.rates
    if rates is None:
        return None
    if rates.kernels is not None:
        rate = f"{count(len(rates.kernels.products), 'product')} and {len(rates.kernels.attention)} attentions by shape"
    else:
        rate = "by the data sheet" if rates.flops_per_second is None else flops(rates.flops_per_second, "FLOP/s")
    links = f"{_link(rates.node)} in a node, {_link(rates.network)} between nodes"
    rest = duration(rates.host_seconds * SECOND_NS)
    return f"{rates.source}: compute {rate}, links {links}, host and data {rest} per step"


def _link(link: MeasuredLink | None) -> str:
    if link is None:
        return "by the data sheet"
    rate, step = gigabytes_per_second(link.bytes_per_second), duration(link.latency_seconds * SECOND_NS)
    return f"{'at least ' if link.is_lower_bound else ''}{rate} GB/s and {step} per step of a ring"


def _ranked(candidate: Candidate, job: Job, *, shape: Transformer, cluster: Cluster) -> Ranked:
    layout, predicted = candidate.layout, candidate.prediction
    fullest = max(predicted.memory, key=lambda rank: rank.total)
    whole = outcome(predicted, job)
    return Ranked(
        dp=layout.dp,
        tp=layout.tp,
        pp=layout.pp,
        cp=layout.cp,
        ep=layout.ep,
        zero=layout.zero,
        replicas=layout.replicas,
        node_ranks=layout.node_ranks,
        quantized=layout.quantize_weights or layout.quantize_gradients,
        optimizer_place=layout.state_place.value,
        parameters_place=layout.parameters_place.value,
        schedule=layout.order_name,
        virtual=layout.pipeline.chunks,
        microbatches=layout.microbatches,
        micro_batch=layout.micro_batch,
        recompute=candidate.recompute.value,
        largest_bytes=predicted.largest_bytes,
        memory=Memory(
            weights=fullest.states.weights,
            gradients=fullest.states.gradients,
            optimizer=fullest.states.optimizer,
            activations=fullest.activations,
            temporary=fullest.temporary,
        ),
        host_bytes=max(rank.host for rank in predicted.memory),
        nvme_bytes=max(rank.nvme for rank in predicted.memory),
        step_seconds=predicted.expected_seconds,
        interval=_interval(candidate, shape=shape, cluster=cluster),
        mfu=predicted.expected_mfu,
        bubble_ratio=predicted.bubble_ratio,
        tokens_per_second=predicted.tokens_per_step / predicted.expected_seconds,
        parts=dict(parts(predicted)),
        axes=[
            Axis(
                axis=each.axis,
                tier=each.tier.value,
                algorithm=each.algorithm.value,
                seconds=each.seconds,
                exposed_seconds=each.exposed_seconds,
            )
            for each in predicted.axes
        ],
        operators=list(_operators(candidate, shape=shape, cluster=cluster)),
        days=whole.days,
        goodput_ratio=whole.goodput_ratio,
        elapsed_days=whole.elapsed_days,
        mtbf_hours=whole.mtbf_hours,
        checkpoint_seconds=whole.checkpoint_seconds,
        gpu_hours=whole.gpu_hours,
        money=whole.money,
        energy_mwh=whole.energy_mwh,
    )


def _interval(candidate: Candidate, *, shape: Transformer, cluster: Cluster) -> Interval | None:
    factors = interval(
        candidate.layout,
        cluster.accelerator,
        shape=shape,
        measured=cluster.rates is not None,
    )
    if factors is None:
        return None
    expected, (like, other) = candidate.prediction.expected_seconds, factors
    return Interval(
        level=LEVEL,
        low_seconds=expected / like,
        high_seconds=expected * like,
        other_low_seconds=expected / other,
        other_high_seconds=expected * other,
    )


def _operators(candidate: Candidate, *, shape: Transformer, cluster: Cluster) -> Iterator[Operator]:
    layout, policy = candidate.layout, FLASH.with_recompute(candidate.recompute)
    machine, sheet = cluster.machine(), replace(cluster, rates=None).machine()
    precision = Precision()
    for each in operators(shape, layout=layout, precision=precision, policy=policy, causal_half=policy.flash):
        forward, backward = each.forward_seconds(machine), each.backward_seconds(machine)
        again = forward if is_repeated(each, policy) else 0.0
        least = each.least_seconds(sheet)
        yield Operator(
            name=each.name,
            kind=each.kind.value,
            count=each.count,
            flops=each.flops,
            moved_bytes=each.moved_bytes,
            intensity=each.intensity,
            least_seconds=least,
            forward_seconds=forward,
            backward_seconds=backward,
            step_seconds=(forward + again + backward) * each.count * layout.microbatches / layout.pp,
            reached_ratio=least / forward if forward else 0.0,
            constants=", ".join(f"{name} {getattr(machine.kernels, name):.3g}" for name in CONSTANTS_OF[each.kind]),
        )


def fitted_constants(machine: Machine) -> dict[str, float]:
    """Constants of the kernels and the links by name."""
    names = dict.fromkeys(name for of_kind in CONSTANTS_OF.values() for name in of_kind)
    kernels = {name: float(getattr(machine.kernels, name)) for name in (*names, "unhidden", "contention")}
    return {**kernels, "link_share": machine.link_share, "network_share": machine.network_share}


def _comparison(place: int, winner: Candidate, other: Candidate) -> Comparison:
    return Comparison(
        place=place,
        more_seconds=other.prediction.expected_seconds - winner.prediction.expected_seconds,
        parts=dict(differences(winner.prediction, other.prediction)),
    )


def _smallest(found: Found) -> Smallest | None:
    if found.smallest is None:
        return None
    layout, recompute, needed = found.smallest
    return Smallest(
        dp=layout.dp,
        tp=layout.tp,
        pp=layout.pp,
        cp=layout.cp,
        ep=layout.ep,
        zero=layout.zero,
        replicas=layout.replicas,
        node_ranks=layout.node_ranks,
        quantized=layout.quantize_weights or layout.quantize_gradients,
        optimizer_place=layout.state_place.value,
        parameters_place=layout.parameters_place.value,
        micro_batch=layout.micro_batch,
        recompute=recompute.value,
        needed_bytes=needed,
    )


def axes(layout: Ranked | Smallest) -> str:
    """Axes with more than one rank, in words."""
    sizes = {"dp": layout["dp"], "tp": layout["tp"], "pp": layout["pp"], "cp": layout["cp"], "ep": layout["ep"]}
    named = [f"{axis} {size}" for axis, size in sizes.items() if size > 1]
    if layout["replicas"] > 1:
        named.append(f"hsdp {layout['replicas']}")
    if layout["node_ranks"] is not None:
        named.append(f"hpz {layout['node_ranks']}")
    if layout["quantized"]:
        named.append("int8")
    if layout["parameters_place"] != Place.DEVICE:
        named.append(f"state on {layout['parameters_place']}")
    elif layout["optimizer_place"] != Place.DEVICE:
        named.append(f"optimizer on {layout['optimizer_place']}")
    return " ".join(named) or "one rank"


def interval_words(ranked: Ranked) -> str:
    """The interval of a layout's step, or the reason that there is none."""
    interval = ranked["interval"]
    if interval is None:
        return "no interval of the step is known: no published training covers it"
    low, high, other_low, other_high = (
        duration(interval[name] * SECOND_NS)
        for name in ("low_seconds", "high_seconds", "other_low_seconds", "other_high_seconds")
    )
    return (
        f"{share(interval['level'])} interval of the step: {low} to {high} with software like that of the published "
        f"trainings, {other_low} to {other_high} with other software"
    )
