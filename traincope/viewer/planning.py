"""What is asked of a plan, field by field, and its answer."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from traincope.errors import UsageError
from traincope.figures.plan import GIB
from traincope.plan.activations import Keeping
from traincope.plan.flops import Recompute
from traincope.plan.layout import ZERO_STAGES, Layout
from traincope.plan.orders import SCHEDULES
from traincope.plan.precision import Precision
from traincope.plan.prediction import Machine, Prediction, predict
from traincope.plan.transformer import Experts, Transformer
from traincope.viewer.view import View


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A number or a choice."""

    name: str
    label: str
    choices: tuple[str, ...] = ()


MODEL = (
    *(Field(name=name, label=name) for name in ("layers", "hidden", "heads")),
    Field(name="kv", label="key, value heads"),
    Field(name="ffn", label="feed-forward"),
    Field(name="vocabulary", label="vocabulary"),
    Field(name="sequence", label="tokens a sequence"),
)
EXPERTS = (
    Field(name="experts", label="experts, 0: none"),
    Field(name="top", label="of them a token takes"),
    Field(name="expert-ffn", label="feed-forward of one"),
    Field(name="shared", label="shared experts"),
    Field(name="dense", label="layers without experts"),
)
MESH = (
    *(Field(name=name, label=name) for name in ("dp", "tp", "pp", "cp", "ep")),
    Field(name="zero", label="ZeRO", choices=tuple(map(str, ZERO_STAGES))),
    Field(name="microbatches", label="microbatches"),
    Field(name="micro", label="sequences in each"),
    Field(name="schedule", label="schedule", choices=tuple(SCHEDULES)),
    Field(name="virtual", label="stages a rank, 0: fewest"),
    Field(name="recompute", label="recompute", choices=tuple(one.value for one in Recompute)),
)
MACHINE = (
    Field(name="peak", label="TFLOP/s of a GPU"),
    Field(name="gib", label="GiB of a GPU"),
    Field(name="node", label="GPUs a node"),
    Field(name="inside", label="GB/s in a node"),
    Field(name="outside", label="GB/s between nodes"),
    Field(name="reached", label="% of peak reached"),
    Field(name="price", label="price of a GPU hour"),
    Field(name="billions", label="billion tokens"),
)
DENSE = {"experts": "0", "top": "2", "expert-ffn": "14336", "shared": "0", "dense": "0", "ep": "1"}
H100 = {"peak": "989", "gib": "80", "node": "8", "inside": "450", "outside": "50", "reached": "60", "price": "2.5"}
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
        **H100,
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
        **H100,
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
        **H100,
    },
}
"""The second has the shapes and the mesh of Llama 3 (Grattafiori et al. 2024, arXiv:2407.21783, tables 3 and 4); its
pipeline was interleaved, in how many stages a rank is not printed. The third has the shapes of Mixtral (Jiang et al.
2024, arXiv:2401.04088, table 1)."""
FIRST = next(iter(PRESETS))
PRESET = "preset"
MOST = 10**12
"""A number above is a slip."""


def values(view: View) -> Mapping[str, str]:
    """The preset's, and what the address says otherwise."""
    preset = PRESETS.get(view.text(PRESET) or FIRST, PRESETS[FIRST])
    return {name: view.text(name) or value for name, value in preset.items()}


def prediction(chosen: Mapping[str, str]) -> Prediction:
    """Raises UsageError for what cannot be."""
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
        microbatches=_whole(chosen, "microbatches"),
        micro_batch=_whole(chosen, "micro"),
        schedule=chosen["schedule"],
        virtual=_whole(chosen, "virtual") or None,
    )
    recompute = next((one for one in Recompute if one == chosen["recompute"]), Recompute.NONE)
    keeping = Keeping(recompute=recompute, flash=True, dropout=False)
    return predict(shape, layout=layout, precision=Precision(), keeping=keeping, machine=machine(chosen))


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
    """Raises UsageError."""
    return Machine(
        peak_flops=_number(chosen, "peak") * 1e12,
        memory_bytes=round(_number(chosen, "gib") * GIB),
        ranks_per_node=_whole(chosen, "node"),
        node_bytes_per_second=_number(chosen, "inside") * 1e9,
        network_bytes_per_second=_number(chosen, "outside") * 1e9,
        efficiency=_number(chosen, "reached") / 100,
    )


def _number(chosen: Mapping[str, str], name: str) -> float:
    text = chosen[name].replace(",", "")
    if not text.replace(".", "", 1).isdecimal() or not 0 <= float(text) <= MOST:
        raise UsageError(f"{name} = {chosen[name]!r} is no number from 0 to {MOST:g}")
    return float(text)


def _whole(chosen: Mapping[str, str], name: str) -> int:
    number = _number(chosen, name)
    if number != int(number):
        raise UsageError(f"{name} = {chosen[name]!r} is no whole number")
    return int(number)


def document(chosen: Mapping[str, str], found: Prediction) -> Mapping[str, object]:
    """Its numbers under the names of `Prediction`, and what they cost."""
    price = _number(chosen, "price")
    return {
        **asdict(found),
        "best_seconds": found.best_seconds,
        "worst_seconds": found.worst_seconds,
        "largest_bytes": max(rank.total for rank in found.memory),
        "device_hours": list(hours(chosen, found)),
        "price": [one * price for one in hours(chosen, found)],
    }


def hours(chosen: Mapping[str, str], found: Prediction) -> tuple[float, float]:
    """Of all GPUs together, least and most."""
    return found.device_hours(_number(chosen, "billions") * 1e9)
