"""Step time in another layout of the same batch, by the formula of `plan search` with the rates that a run measured.

No replay can show messages that the run never sent, so `dp`, `cp`, `ep`, `zero`, ZeRO++ and offload are computed. The
formula gives the run's own layout and the new one. Their difference, and their ratio, are applied to the recorded step:
what the formula does not know stays the same, or grows with the rest. On a processor, FSDP's copies of what it gathers
and reduces take no time, or as long as the messages. The expected step is the mean of these. The interval spans them,
with all communication hidden and with none hidden, and is widened by the formula's error for the run's own layout.

ZeRO++'s kernels take the bandwidth of the device's data sheet; on a processor their time is unknown. The CPU's update
and its copies take the rates of the vendor's server, or half of them, and the recorded time of the device's update is
saved.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import mean
from types import MappingProxyType
from typing import Any

from traincope.analysis.analyze import Analysis
from traincope.analysis.attribution.terms import PHASE_TERMS
from traincope.analysis.what_if.rates import measured_rates
from traincope.analysis.what_if.settings import LAYOUT, Settings
from traincope.errors import UsageError
from traincope.events import Phase
from traincope.plan.hardware import find_hardware
from traincope.plan.layout.activations import ActivationPolicy
from traincope.plan.layout.layout import Layout, Overlap, Place
from traincope.plan.layout.machine import Machine, Tier
from traincope.plan.layout.prediction import Prediction, predict, quantizing_accesses, quantizing_seconds
from traincope.plan.model.flops import Recompute
from traincope.plan.model.precision import Precision
from traincope.plan.model.transformer import Experts, Transformer
from traincope.plan.search.clusters import host_of
from traincope.plan.search.rates import MeasuredRates
from traincope.units import count, duration

UNDECLARED = (
    f"{', '.join(LAYOUT)} are computed from the model's sizes, which only a run of `traincope train` declares; "
    "`traincope plan search --like RUN` takes them as options"
)
NUMBERS = {"fp32": "fp32", "fp16": "fp16"}
"""Precision of a training -> type of its activations; all others keep bf16."""
PLAIN_TRAFFIC = (
    ("ddp", "compression", "none"),
    ("fsdp", "quantization_block", 256),
)
"""(table, setting, value) of weights and gradients that travel as the formula counts them. Runs older than a setting do
not have it."""
FIELDS: Mapping[str, str] = MappingProxyType(
    {"offload_optimizer": "optimizer_place", "offload_parameters": "parameters_place"}
)
"""Setting -> its name in `Layout`, if it has another one."""
PLACES: Mapping[str, Place] = MappingProxyType({"none": Place.DEVICE, "cpu": Place.CPU, "file": Place.NVME})
"""Place by its name in a run's table `offload`."""
OPTIMIZER = PHASE_TERMS[Phase.OPTIMIZER]
UNKNOWN_RATE = 1e30
"""Rate of links that no message of the run shows. A prediction that needs it is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """Sizes of a run of `traincope train`."""

    shape: Transformer
    layout: Layout
    numbers: str
    """Type of activations, and of weights that FSDP gathers."""
    reduce: str
    """Type of gradients that FSDP reduces."""
    sharded: bool
    """FSDP has the parameters. In a pipeline its layout has `zero` = 1, as DDP with shards of the optimizer's state."""
    policy: ActivationPolicy

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> "Declared":
        """Read a run's settings. Raises UsageError if they lack the sizes, or have a setting without a formula."""
        try:
            return cls._read(settings)
        except (KeyError, TypeError, AttributeError) as error:
            raise UsageError(UNDECLARED) from error

    @classmethod
    def _read(cls, settings: Mapping[str, Any]) -> "Declared":
        model, parallel, train = (_table(settings, name) for name in ("model", "parallel", "train"))
        sharded = parallel["dp"] == 1 and parallel["fsdp"] * parallel["cp"] > 1
        stage = 1 if parallel["pp"] > 1 else _table(settings, "fsdp")["stage"]
        replicas = parallel["dp_replicate"] * parallel["fsdp"] * parallel["dp"]
        microbatches = parallel["microbatches"] * train["accumulation"]
        recompute = train["recompute"]
        if recompute not in tuple(each.value for each in Recompute):
            raise UsageError(f"train.recompute = {recompute!r} of this run has no formula")
        for table, name, plain in PLAIN_TRAFFIC:
            if (value := _table(settings, table).get(name, plain)) != plain:
                raise UsageError(
                    f"{table}.{name} = {value!r} of this run has no formula for its messages; record a run without it"
                )
        numbers = NUMBERS.get(train["precision"], "bf16")
        return cls(
            shape=_shape(model, settings.get("experts")),
            layout=Layout(
                dp=replicas,
                replicas=parallel["dp_replicate"],
                zero=stage if sharded else int(_table(settings, "ddp")["shard_optimizer"]),
                microbatches=microbatches,
                micro_batch=train["batch"] // replicas // microbatches,
                overlap=Overlap.DATA,
                fused_sums=False,
                **_sharing(settings, zero=stage if sharded else 0),
                **{
                    name: parallel[name]
                    for name in ("tp", "pp", "cp", "ep", "sequence_parallel", "cp_method", "schedule", "virtual")
                },
            ),
            numbers=numbers,
            # Before this setting, gradients were reduced in fp32.
            reduce=_table(settings, "fsdp").get("reduce", "fp32"),
            sharded=sharded,
            policy=ActivationPolicy(recompute=Recompute(recompute), flash=True, dropout=False, dtype=numbers),
        )

    def uses_fsdp(self, layout: Layout) -> bool:
        """Whether the engine takes FSDP for a layout of this run. Stage 1 stays what it is in the run."""
        return layout.zero >= 2 or (self.sharded and layout.zero == self.layout.zero)

    def precision(self, layout: Layout) -> Precision:
        """Types of numbers in a layout. DDP keeps and sends weights and gradients in fp32."""
        weights, gradients = (self.numbers, self.reduce) if self.uses_fsdp(layout) else ("fp32", "fp32")
        return Precision(weights=weights, gradients=gradients, activations=self.numbers, master=True)


def _table(settings: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    values = settings[name]
    if not isinstance(values, Mapping):
        raise TypeError(name)
    return values


def _shape(model: Mapping[str, Any], experts: object) -> Transformer:
    names = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocabulary", "sequence")
    routed = None
    if isinstance(experts, Mapping):
        routed = Experts(
            count=experts["number"],
            top_k=experts["top_k"],
            ffn=experts["ffn"],
            shared=int(experts["shared"]),
            shared_ffn=model["ffn"],
        )
    return Transformer(**{name: model[name] for name in names}, gated_mlp=True, untied=True, experts=routed)


def _sharing(settings: Mapping[str, Any], *, zero: int) -> dict[str, Any]:
    """ZeRO++ and offload of a run. Below stage 3 weights that lie elsewhere stay on the device, and the CPU updates
    them. Runs older than a setting do not have it.
    """
    fsdp, offload = _table(settings, "fsdp"), settings.get("offload", {})
    optimizer, parameters = (PLACES[offload.get(name, "none")] for name in ("optimizer", "parameters"))
    if zero < 3 and parameters is not Place.DEVICE:
        optimizer, parameters = optimizer if optimizer is not Place.DEVICE else Place.CPU, Place.DEVICE
    return {
        "node_ranks": fsdp.get("node_ranks") if zero == 3 else None,
        "quantize_weights": fsdp.get("quantize_weights", False),
        "quantize_gradients": fsdp.get("quantize_gradients", False),
        "optimizer_place": optimizer,
        "parameters_place": parameters,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutChange:
    """Seconds of the step after a change."""

    expected: float
    least: float
    most: float
    facts: tuple[str, ...]


def changed_layout(analysis: Analysis, settings: Settings, *, step_seconds: float) -> LayoutChange:
    """Step in the layout with these settings; the batch stays. `step_seconds`: the recorded step.

    Raises UsageError for a layout that the model cannot have, and where the run does not show a rate that it needs.
    """
    declared = Declared.of(analysis.timeline.run.info.settings)
    layout = new_layout(declared.layout, settings)
    check_sharing(declared, layout)
    rates = measured_rates(analysis, source="this run", asked_by="")
    machine = _machine(analysis, rates)
    check_places(declared.layout, layout, machine)
    before, after = (_predict(declared, each, machine) for each in (declared.layout, layout))
    _check_rates(rates, before, after)
    saved = _saved_seconds(analysis, declared.layout, layout)
    copies: tuple[float, ...] = (0.0, _copying_seconds(declared.layout, layout, before, after))
    if rates.streams:
        copies = (_quantizing_seconds(analysis, declared, layout),)
    if layout.updates_on_cpu:
        # A server reaches its data sheets' rates, or half of them.
        halved = after.offload_seconds - before.offload_seconds
        copies = tuple(each + more for each in copies for more in (0.0, halved))
    steps = {
        bound: [
            each for more in copies for each in _applied(step_seconds, before, after, bound=bound, more=more - saved)
        ]
        for bound in ("expected_seconds", "best_seconds", "worst_seconds")
    }
    bounds = [each for of_bound in steps.values() for each in of_bound]
    own_error = abs(before.expected_seconds - step_seconds)
    return LayoutChange(
        expected=mean(steps["expected_seconds"]),
        least=max(min(bounds) - own_error, 0.0),
        most=max(bounds) + own_error,
        facts=(
            *_facts(declared, layout, rates, before, after, step_seconds=step_seconds),
            *_sharing_facts(declared, layout, machine, after, saved=saved),
        ),
    )


def _applied(
    step_seconds: float, before: Prediction, after: Prediction, *, bound: str, more: float
) -> tuple[float, float]:
    """The step times the ratio of the predictions, and plus their difference. `more`: seconds that the new one adds."""
    old, new = getattr(before, bound), getattr(after, bound) + more
    return max(step_seconds * new / old, 0.0), max(step_seconds + new - old, 0.0)


def _copying_seconds(old: Layout, new: Layout, before: Prediction, after: Prediction) -> float:
    """Change of the time in which FSDP copies parameters and gradients, if a copy takes as long as its message.

    The run's FLOP/s contain its own copies, so the new step loses their share of its compute.
    """

    def copied(layout: Layout, prediction: Prediction) -> float:
        return prediction.axis_seconds.get("dp", 0.0) if layout.zero >= 2 else 0.0

    return copied(new, after) - copied(old, before) * after.compute_seconds / before.compute_seconds


def _unquantized(layout: Layout) -> Layout:
    return replace(layout, quantize_weights=False, quantize_gradients=False)


def _quantizing_seconds(analysis: Analysis, declared: Declared, layout: Layout) -> float:
    """Seconds that ZeRO++'s kernels take more than in the run, by the data sheet."""
    if quantizing_accesses(layout) == quantizing_accesses(declared.layout) == 0:
        return 0.0
    name = _device(analysis)
    spec = find_hardware(name)
    if spec is None or spec.bytes_per_second is None:
        raise UsageError(
            f"the bandwidth of the memory of {name} is unknown, so the time of the kernels that quantize is; record a "
            "run on a device with a data sheet"
        )
    old, new = (
        quantizing_seconds(declared.shape, layout=each, bytes_per_second=spec.bytes_per_second)
        for each in (declared.layout, layout)
    )
    return new - old


def _saved_seconds(analysis: Analysis, old: Layout, new: Layout) -> float:
    """Seconds of the device's update, as recorded, that an update on the CPU saves."""
    if old.updates_on_cpu or not new.updates_on_cpu:
        return 0.0
    ledgers = [rank for rank in analysis.ledger.ranks if rank.counted.any()]
    return max((rank.total(OPTIMIZER) or 0) / int(rank.counted.sum()) for rank in ledgers) / 1e9


def check_sharing(declared: Declared, layout: Layout) -> None:
    """Raise UsageError for ZeRO++ without shards of FSDP: DDP has none."""
    if layout.node_ranks is None and _unquantized(layout) == layout:
        return
    if not declared.uses_fsdp(layout) or layout.shards == layout.replicas:
        raise UsageError(
            "quantize_weights, quantize_gradients and node_ranks change what FSDP sends, and this layout has no shards "
            "of FSDP; add zero=2 or zero=3"
        )


def check_places(old: Layout, new: Layout, machine: Machine) -> None:
    """Raise UsageError for a change of places, or of quantized messages on a processor, whose rates are unknown."""
    quantized = [(each.quantize_weights, each.quantize_gradients) for each in (old, new)]
    if quantized[0] != quantized[1] and not machine.streams:
        raise UsageError(
            "the ranks of this run compute on a processor, where the time of quantizing is unknown and may exceed what "
            "smaller messages save; quantize_weights and quantize_gradients need a run on GPUs"
        )
    if (old.state_place, old.parameters_place) == (new.state_place, new.parameters_place):
        return
    if not machine.streams:
        raise UsageError(
            "the ranks of this run compute on a processor, so its memory holds all state already; offload_optimizer "
            "and offload_parameters need a run on GPUs"
        )
    if machine.host is None:
        raise UsageError(
            "the rates of the CPU, of PCIe and of the disks of this run's servers are unknown, so offload has no time; "
            "record a run on a GPU of `traincope plan search`"
        )
    if old.updates_on_cpu and not new.updates_on_cpu:
        raise UsageError(
            "the CPU updates the weights in this run, so it does not show how long its device would take; record a run "
            "without offload"
        )


def new_layout(layout: Layout, settings: Settings) -> Layout:
    """The layout with these settings and the same batch. Raises UsageError if batch or shards do not divide."""
    wanted = {FIELDS.get(name, name): value for name in LAYOUT if (value := getattr(settings, name)) is not None}
    if wanted.get("node_ranks") == 1:
        wanted["node_ranks"] = None
    dp = wanted.get("dp", layout.dp)
    pieces = dp * layout.microbatches
    if layout.batch % pieces:
        raise UsageError(
            f"the batch of {layout.batch} sequences does not divide into dp = {dp} x {layout.microbatches} "
            f"microbatches; choose a divisor of {layout.batch // layout.microbatches}"
        )
    return replace(
        layout,
        **wanted,
        replicas=_replicas(layout, dp=dp, zero=settings.zero),
        micro_batch=layout.batch // pieces,
    )


def _replicas(layout: Layout, *, dp: int, zero: int | None) -> int:
    """Replicas of shards with `dp` data ranks, each as large as in `layout`. DDP has none."""
    if layout.replicas == 1 or (zero is not None and zero < 2 and zero != layout.zero):
        return 1
    ranks = layout.dp // layout.replicas
    if dp % ranks:
        raise UsageError(
            f"dp = {dp} does not divide into replicas of {ranks} ranks (dp_replicate); choose a multiple of {ranks}"
        )
    return dp // ranks


def _machine(analysis: Analysis, rates: MeasuredRates) -> Machine:
    hosts: dict[str | None, int] = {}
    for rank in analysis.timeline.run.ranks:
        hosts[rank.info.host.name] = hosts.get(rank.info.host.name, 0) + 1
    assert rates.flops_per_second is not None
    known = Machine(
        peak_flops=rates.flops_per_second,
        memory_bytes=1 << 62,
        # More ranks of a run on one host are assumed to find room there.
        ranks_per_node=1 << 20 if len(hosts) == 1 else max(hosts.values()),
        node_bytes_per_second=UNKNOWN_RATE,
        network_bytes_per_second=UNKNOWN_RATE,
        host=host_of(_device(analysis)) if rates.streams else None,
    )
    return rates.applied(known)


def _device(analysis: Analysis) -> str:
    """Name of the ranks' devices; of different ones, all names."""
    names = {str(rank.info.device.get("name", "unknown")) for rank in analysis.timeline.run.ranks}
    return ", ".join(sorted(names))


def _predict(declared: Declared, layout: Layout, machine: Machine) -> Prediction:
    return predict(
        declared.shape,
        layout=layout,
        precision=declared.precision(layout),
        policy=declared.policy,
        machine=machine,
        causal_half=True,
    )


def _check_rates(rates: MeasuredRates, *predictions: Prediction) -> None:
    for prediction in predictions:
        for each in prediction.axes:
            link = rates.node if each.tier is Tier.DOMAIN else rates.network
            if link is None:
                where = "within a host" if each.tier is Tier.DOMAIN else "between hosts"
                raise UsageError(
                    f"axis {each.axis} sends {where}, and no axis of this run has collectives of several sizes there, "
                    "so their latency and bandwidth are unknown; record a run with another axis"
                )


def _facts(
    declared: Declared,
    layout: Layout,
    rates: MeasuredRates,
    before: Prediction,
    after: Prediction,
    *,
    step_seconds: float,
) -> Iterator[str]:
    old = declared.layout
    assert rates.flops_per_second is not None
    ranks = (
        f"{layout.ranks} ranks instead of {old.ranks}" if layout.ranks != old.ranks else f"the same {old.ranks} ranks"
    )
    yield f"the batch of {layout.batch} sequences stays, on {ranks}"
    if layout.ranks > old.ranks:
        yield "the new ranks are assumed to have cores, or GPUs, of their own, as idle as those of the run"
    yield f"a rank computes {rates.flops_per_second:.3g} FLOP/s, whatever the size of its matrices"
    for name, link in (("in a host", rates.node), ("between hosts", rates.network)):
        if link is not None:
            yield (
                f"links {name}: {duration(link.latency_seconds * 1e9)} per step of a ring, "
                f"{link.bytes_per_second / 1e9:.3g} GB/s; larger groups are assumed to have the same"
            )
    error = before.expected_seconds / step_seconds - 1
    yield f"for the run's own layout the formula is {abs(error):.1%} too {'high' if error > 0 else 'low'}"
    for each in after.axes:
        hidden = each.seconds - each.exposed_seconds
        part = f"{duration(hidden * 1e9)} of it are expected to be hidden" if hidden else "and nothing hides it"
        yield f"{each.axis} takes {duration(each.seconds * 1e9)} per step, {part}"
    if layout.zero != old.zero:
        yield f"{_messages(declared, layout)}; in the run {_messages(declared, old)}"
    if any(each.zero == 1 and not declared.uses_fsdp(each) for each in (old, layout)):
        yield (
            "stage 1 is assumed to reduce only a rank's share of the gradients; stage 1 of `traincope train` reduces "
            "all of them on each rank, and so sends half as many bytes again"
        )
    if layout.zero != old.zero and max(layout.zero, old.zero) >= 2 and layout.microbatches > 1:
        yield (
            "stages 2 and 3 are assumed to reduce each microbatch's gradients; stage 3 of `traincope train` reduces "
            "them once per step"
        )
    if old.replicas > 1 and declared.uses_fsdp(layout):
        yield (
            f"{count(layout.replicas, 'replica')} of the shards (dp_replicate), of "
            f"{count(layout.shards // layout.replicas, 'rank')} each; the run has {old.replicas}"
        )
    if not rates.streams:
        yield (
            "the ranks have no streams, so messages of FSDP, tp and a ring of cp are not hidden; FSDP's copies of its "
            "messages take no time, or as long as they do: both are computed"
        )


def _sharing_facts(
    declared: Declared, layout: Layout, machine: Machine, after: Prediction, *, saved: float
) -> Iterator[str]:
    """Yield what ZeRO++ and offload stand on."""
    quantized = _unquantized(layout) != layout
    if layout.node_ranks is not None:
        yield f"backward gathers weights among {layout.node_ranks} ranks, from a copy that they keep from forward on"
    if quantized:
        what = [name for name in ("weights", "gradients") if getattr(layout, f"quantize_{name}")]
        yield (
            f"{' and '.join(what)} travel as int8 with a scale for 256 numbers; the kernels for that take the memory's "
            "bandwidth of the data sheet"
        )
    if layout.updates_on_cpu and machine.host is not None:
        yield (
            f"offload takes {duration(after.offload_seconds * 1e9)} that nothing hides, by data sheets, or twice as "
            f"long, if the server reaches half of their rates: {machine.host.source}"
        )
        if not declared.layout.updates_on_cpu:
            yield f"the device's update, {duration(saved * 1e9)} in the run, is saved"
        yield "whether the state fits there is not checked; `traincope plan memory` shows its bytes"
    if quantized or layout.node_ranks is not None or (layout.updates_on_cpu and machine.host is not None):
        yield "no published training with ZeRO++ or offload was compared with the formula"


def _messages(declared: Declared, layout: Layout) -> str:
    precision = declared.precision(layout)
    if declared.uses_fsdp(layout):
        return f"FSDP gathers weights in {precision.weights} and reduces gradients in {precision.gradients}"
    return f"DDP reduces gradients in {precision.gradients}"
