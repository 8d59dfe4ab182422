"""The fields of the layout page, and the prediction for their values."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from traincope.errors import UsageError
from traincope.plan.layout.activations import ActivationPolicy
from traincope.plan.layout.kernels import uniform
from traincope.plan.layout.layout import ZERO_STAGES, Layout, Place
from traincope.plan.layout.machine import Host, Machine
from traincope.plan.layout.prediction import Prediction, predict
from traincope.plan.model.flops import Recompute
from traincope.plan.model.precision import Precision
from traincope.plan.model.transformer import Experts, Transformer
from traincope.plan.pipeline.orders import SCHEDULES
from traincope.plan.search.clusters import DGX_A100, DGX_H100, GIB
from traincope.units import CURRENCY
from traincope.viewer.view import View

CURRENCIES = (CURRENCY, "CHF", "CNY", "EUR", "GBP", "INR", "JPY", "KRW")


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A number field or a drop-down."""

    name: str
    label: str
    choices: tuple[str, ...] = ()


MODEL = (
    Field(name="layers", label="layers"),
    Field(name="hidden", label="hidden size"),
    Field(name="heads", label="attention heads"),
    Field(name="kv", label="key/value heads"),
    Field(name="ffn", label="feed-forward size"),
    Field(name="vocabulary", label="vocabulary size"),
    Field(name="sequence", label="tokens per sequence"),
)
EXPERTS = (
    Field(name="experts", label="experts (0: none)"),
    Field(name="top", label="experts per token"),
    Field(name="expert-ffn", label="expert feed-forward size"),
    Field(name="shared", label="shared experts"),
    Field(name="dense", label="layers without experts"),
)
MESH = (
    *(Field(name=name, label=name) for name in ("dp", "tp", "pp", "cp", "ep")),
    Field(name="zero", label="ZeRO stage", choices=tuple(map(str, ZERO_STAGES))),
    Field(name="microbatches", label="microbatches"),
    Field(name="micro", label="sequences per microbatch"),
    Field(name="schedule", label="schedule", choices=tuple(SCHEDULES)),
    Field(name="virtual", label="stages per rank (0: fewest)"),
    Field(name="recompute", label="recompute", choices=tuple(kind.value for kind in Recompute)),
)
YES, NO = "yes", "no"
SHARING = (
    Field(name="node-ranks", label="ranks that share a copy of weights (0: none)"),
    Field(name="quantize-weights", label="weights as int8", choices=(NO, YES)),
    Field(name="quantize-gradients", label="gradients as int8", choices=(NO, YES)),
    Field(name="offload-optimizer", label="optimizer state on", choices=tuple(Place)),
    Field(name="offload-parameters", label="weights on", choices=tuple(Place)),
)
"""ZeRO++ and offload."""
SERVERS: Mapping[str, Host] = {"DGX A100": DGX_A100, "DGX H100": DGX_H100}
UNKNOWN = "unknown"
MACHINE = (
    Field(name="peak", label="peak TFLOP/s per GPU"),
    Field(name="gib", label="memory per GPU, GiB"),
    Field(name="node", label="GPUs per node"),
    Field(name="inside", label="GB/s inside a node"),
    Field(name="outside", label="GB/s between nodes"),
    Field(name="server", label="server, for offload", choices=(UNKNOWN, *SERVERS)),
    Field(name="reached", label="efficiency, % of peak"),
    Field(name="price", label="price per GPU-hour"),
    Field(name="currency", label="currency", choices=CURRENCIES),
    Field(name="billions", label="training tokens, 10^9"),
)
DENSE = {"experts": "0", "top": "2", "expert-ffn": "14336", "shared": "0", "dense": "0", "ep": "1"}
PLAIN = {
    "node-ranks": "0",
    "quantize-weights": NO,
    "quantize-gradients": NO,
    "offload-optimizer": Place.DEVICE.value,
    "offload-parameters": Place.DEVICE.value,
}
H100 = {
    "peak": "989",
    "gib": "80",
    "node": "8",
    "inside": "450",
    "outside": "50",
    "server": "DGX H100",
    "reached": "60",
}
PRICE = {"price": "2.5", "currency": CURRENCY}
PRESETS: Mapping[str, Mapping[str, str]] = {
    "70B on 64": {
        "layers": "80",
        "hidden": "8192",
        "heads": "64",
        "kv": "8",
        "ffn": "28672",
        "vocabulary": "128256",
        "sequence": "8192",
        "dp": "4",
        "tp": "8",
        "pp": "2",
        "cp": "1",
        "zero": "1",
        "microbatches": "32",
        "micro": "1",
        "schedule": "1f1b",
        "virtual": "1",
        "recompute": "selective",
        "billions": "1000",
        **DENSE,
        **PLAIN,
        **H100,
        **PRICE,
    },
    "405B on 16,384": {
        "layers": "126",
        "hidden": "16384",
        "heads": "128",
        "kv": "8",
        "ffn": "53248",
        "vocabulary": "128256",
        "sequence": "8192",
        "dp": "128",
        "tp": "8",
        "pp": "16",
        "cp": "1",
        "zero": "1",
        "microbatches": "16",
        "micro": "1",
        "schedule": "interleaved",
        "virtual": "4",
        "recompute": "none",
        "billions": "15600",
        **DENSE,
        **PLAIN,
        **H100,
        **PRICE,
    },
    "8x7B on 64": {
        "layers": "32",
        "hidden": "4096",
        "heads": "32",
        "kv": "8",
        "ffn": "14336",
        "vocabulary": "32000",
        "sequence": "8192",
        "dp": "16",
        "tp": "1",
        "pp": "4",
        "cp": "1",
        "zero": "1",
        "microbatches": "32",
        "micro": "1",
        "schedule": "1f1b",
        "virtual": "1",
        "recompute": "selective",
        "billions": "1000",
        **DENSE,
        "experts": "8",
        "ep": "8",
        **PLAIN,
        **H100,
        **PRICE,
    },
}
"""Examples. The second has the shapes and the mesh of Llama 3 (Grattafiori et al. 2024, arXiv:2407.21783, tables 3
and 4); its pipeline was interleaved, and the paper does not give the stages per rank. The third has the shapes of
Mixtral (Jiang et al. 2024, arXiv:2401.04088, table 1)."""
FIRST = next(iter(PRESETS))
PRESET = "preset"
MAX = 10**12
"""Largest number that a field accepts."""


def values(view: View) -> Mapping[str, str]:
    """Values of the preset, overridden by the address."""
    preset = PRESETS.get(view.text(PRESET) or FIRST, PRESETS[FIRST])
    return {name: view.text(name) or value for name, value in preset.items()}


def prediction(chosen: Mapping[str, str]) -> Prediction:
    """The prediction for the chosen values. Raises UsageError for impossible values."""
    shape = Transformer(
        layers=_whole(chosen, "layers"),
        hidden=_whole(chosen, "hidden"),
        heads=_whole(chosen, "heads"),
        kv_heads=_whole(chosen, "kv"),
        ffn=_whole(chosen, "ffn"),
        vocabulary=_whole(chosen, "vocabulary"),
        sequence=_whole(chosen, "sequence"),
        gated_mlp=True,
        untied=True,
        experts=_experts(chosen),
    )
    layout = Layout(
        dp=_whole(chosen, "dp"),
        tp=_whole(chosen, "tp"),
        pp=_whole(chosen, "pp"),
        cp=_whole(chosen, "cp"),
        ep=_whole(chosen, "ep"),
        zero=_whole(chosen, "zero"),
        node_ranks=_whole(chosen, "node-ranks") or None,
        quantize_weights=_choice(chosen, "quantize-weights", (NO, YES)) == YES,
        quantize_gradients=_choice(chosen, "quantize-gradients", (NO, YES)) == YES,
        optimizer_place=Place(_choice(chosen, "offload-optimizer", tuple(Place))),
        parameters_place=Place(_choice(chosen, "offload-parameters", tuple(Place))),
        microbatches=_whole(chosen, "microbatches"),
        micro_batch=_whole(chosen, "micro"),
        schedule=chosen["schedule"],
        virtual=_whole(chosen, "virtual") or None,
    )
    recompute = next((kind for kind in Recompute if kind == chosen["recompute"]), Recompute.NONE)
    policy = ActivationPolicy(recompute=recompute, flash=True, dropout=False)
    return predict(shape, layout=layout, precision=Precision(), policy=policy, machine=machine(chosen))


def _experts(chosen: Mapping[str, str]) -> Experts | None:
    if not _whole(chosen, "experts"):
        return None
    return Experts(
        count=_whole(chosen, "experts"),
        top_k=_whole(chosen, "top"),
        ffn=_whole(chosen, "expert-ffn"),
        shared=_whole(chosen, "shared"),
        dense_layers=_whole(chosen, "dense"),
    )


def machine(chosen: Mapping[str, str]) -> Machine:
    """The chosen GPU and network. Raises UsageError for impossible values."""
    return Machine(
        peak_flops=_number(chosen, "peak") * 1e12,
        memory_bytes=round(_number(chosen, "gib") * GIB),
        ranks_per_node=_whole(chosen, "node"),
        node_bytes_per_second=_number(chosen, "inside") * 1e9,
        network_bytes_per_second=_number(chosen, "outside") * 1e9,
        kernels=uniform(_number(chosen, "reached") / 100),
        host=SERVERS.get(_choice(chosen, "server", (UNKNOWN, *SERVERS))),
    )


def _choice(chosen: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    if chosen[name] not in choices:
        raise UsageError(f"{name} = {chosen[name]!r} is not one of {', '.join(choices)}")
    return chosen[name]


def _number(chosen: Mapping[str, str], name: str) -> float:
    text = chosen[name].replace(",", "")
    if not text.replace(".", "", 1).isdecimal() or not 0 <= float(text) <= MAX:
        raise UsageError(f"{name} = {chosen[name]!r} is not a number from 0 to {MAX:g}")
    return float(text)


def _whole(chosen: Mapping[str, str], name: str) -> int:
    number = _number(chosen, name)
    if number != int(number):
        raise UsageError(f"{name} = {chosen[name]!r} is not a whole number")
    return int(number)


def document(chosen: Mapping[str, str], plan: Prediction) -> Mapping[str, object]:
    """The prediction's numbers under the names of `Prediction`, and their cost."""
    price = _number(chosen, "price")
    return {
        **asdict(plan),
        "expected_seconds": plan.expected_seconds,
        "expected_mfu": plan.expected_mfu,
        "axis_seconds": dict(plan.axis_seconds),
        "largest_bytes": max(rank.total for rank in plan.memory),
        "device_hours": hours(chosen, plan),
        "price": hours(chosen, plan) * price,
    }


def currency(chosen: Mapping[str, str]) -> str:
    """The currency of the price. Raises UsageError for one that is not a choice."""
    return _choice(chosen, "currency", CURRENCIES)


def hours(chosen: Mapping[str, str], plan: Prediction) -> float:
    """GPU-hours of the whole training."""
    return plan.device_hours(_number(chosen, "billions") * 1e9)
