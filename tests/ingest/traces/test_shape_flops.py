"""FLOPs of recorded shapes; None if the shapes are uncertain."""

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch
from torch.nn.functional import conv2d, conv_transpose2d, scaled_dot_product_attention
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from traincope.events import Work
from traincope.ingest import read_kineto
from traincope.ingest.traces.events import Arguments
from traincope.ingest.traces.recorded_call import Recorded, recorded
from traincope.ingest.traces.shape_flops import FORMULAS, Count, shape_flops

BFLOAT16 = "c10::BFloat16"
HEADS = [16, 16, 559, 64]


def counted(
    name: str, dims: object, types: list[str], values: list[str] | None = None, **others: object
) -> Count | None:
    arguments = {"External id": 3, "Input type": types, "Input Dims": dims, "Ev Idx": 1, **others}
    return shape_flops(name, parsed(arguments if values is None else arguments | {"Concrete Inputs": values}))


def parsed(arguments: dict[str, object]) -> Recorded:
    return recorded(msgspec.json.decode(json.dumps(arguments), type=Arguments))


def test_a_product_of_two_matrices() -> None:
    assert counted("aten::mm", [[128, 64], [64, 32]], ["float", "float"]) == (2 * 128 * 64 * 32, "float32", Work.MATMUL)


def test_the_added_input_is_not_a_factor() -> None:
    """Qwen's query projection over 32,768 tokens."""
    result = counted(
        "aten::addmm", [[1024], [32768, 1024], [1024, 1024], [], []], ["c10::BFloat16"] * 3 + ["Scalar"] * 2
    )
    assert result == (2 * 32768 * 1024 * 1024, "bfloat16", Work.MATMUL)


def test_a_batch_of_products() -> None:
    result = counted("aten::bmm", [[8, 4, 16], [8, 16, 2]], ["c10::Half"] * 2)
    assert result == (2 * 8 * 4 * 16 * 2, "float16", Work.MATMUL)


def test_a_convolution() -> None:
    """A layer of ResNet-18 with a stride of 2: 14 x 14 positions become 7 x 7."""
    result = counted(
        "aten::convolution",
        [[10, 256, 14, 14], [512, 256, 3, 3], [], [], [], [], [], [], []],
        [BFLOAT16, BFLOAT16, "", *["ScalarList"] * 3, "Scalar", "ScalarList", "Scalar"],
        ["", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"],
    )
    assert result == (2 * 10 * 7 * 7 * 512 * 256 * 3 * 3, "bfloat16", Work.MATMUL)


@pytest.mark.parametrize(("causal", "work"), [("True", Work.CAUSAL_ATTENTION), ("False", Work.ATTENTION)])
def test_attention_counts_in_full(causal: str, work: Work) -> None:
    """Qwen's attention over sequences of 559 tokens."""
    result = counted(
        "aten::_scaled_dot_product_flash_attention",
        [HEADS, HEADS, HEADS, [], [], [], []],
        [BFLOAT16] * 3 + ["Scalar"] * 4,
        ["", "", "", "0.", causal, "False", "0.125"],
    )
    assert result == (2 * 2 * 16 * 16 * 559 * 559 * 64, "bfloat16", work)


@pytest.mark.parametrize(
    ("name", "dims", "types"),
    [
        ("aten::add", [[2, 3], [3, 5]], ["float", "float"]),
        ("aten::mm", [[2, 3], [4, 5]], ["float", "float"]),
        ("aten::mm", [[], []], ["float", "float"]),
        ("aten::mm", [[2, 3]], ["float"]),
        ("aten::mm", "unknown", ["float"]),
        ("aten::mm", [[2, 3], [3, 5]], ["c10::complex", "c10::complex"]),
        ("aten::bmm", [[2, 2, 3], [4, 3, 5]], ["float", "float"]),
        ("aten::_scaled_dot_product_flash_attention", [HEADS] * 3, [BFLOAT16] * 3),
        ("aten::convolution", [[10, 256, 14, 14], [512, 256, 3, 3]], [BFLOAT16] * 2),
    ],
)
def test_other_operators_and_uncertain_shapes_have_no_flops(name: str, dims: object, types: list[str]) -> None:
    assert counted(name, dims, types) is None


def test_without_shapes_there_are_no_flops() -> None:
    assert shape_flops("aten::mm", parsed({"External id": 3, "Ev Idx": 1})) is None


def test_the_positions_of_flags_are_those_of_torch() -> None:
    names = {name: _argument_names(name) for name in FORMULAS if "attention" in name}
    for name, arguments in names.items():
        flags = ["False"] * len(arguments)
        flags[arguments.index("is_causal")] = "True"
        at = arguments.index("query")
        dims = [HEADS if at <= place < at + 3 else [] for place in range(len(arguments))]
        result = counted(name, dims, [BFLOAT16] * len(arguments), flags)
        assert result is not None
        assert result.work in (Work.CAUSAL_ATTENTION, Work.CAUSAL_ATTENTION_AGAIN)


def _argument_names(name: str) -> list[str]:
    operator = getattr(torch.ops.aten, name.removeprefix("aten::")).default
    return [argument.name for argument in operator._schema.arguments]


def _inputs(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, requires_grad=True)


PRODUCTS = {
    "linear": lambda: torch.nn.functional.linear(_inputs(5, 7, 16), _inputs(32, 16), _inputs(32)),
    "batched": lambda: _inputs(3, 4, 16) @ _inputs(3, 16, 2),
    "convolution": lambda: conv2d(_inputs(2, 8, 15, 14), _inputs(6, 8, 3, 5), stride=(2, 1), padding=1),
    "dilated": lambda: conv2d(_inputs(2, 8, 15, 14), _inputs(6, 8, 3, 3), dilation=2, padding=(1, 0)),
    "transposed": lambda: conv_transpose2d(_inputs(2, 8, 5, 6), _inputs(8, 3, 3, 3), stride=2),
}


@pytest.mark.parametrize("work", PRODUCTS.values(), ids=PRODUCTS)
def test_a_trace_has_the_flops_that_torch_counts(work: Callable[[], torch.Tensor], tmp_path: Path) -> None:
    with FlopCounterMode(display=False) as mode:
        work().sum().backward()
    assert traced_flops(work, tmp_path) == mode.get_total_flops() > 0


def test_groups_of_a_convolution_count_once(tmp_path: Path) -> None:
    """(8, 12) positions of 6 channels meet filters of 4 x 3 x 5, thrice. torch doubles a gradient of two groups."""
    work = lambda: conv2d(_inputs(2, 8, 15, 14), _inputs(6, 4, 3, 5), stride=(2, 1), padding=1, groups=2)  # noqa: E731
    assert traced_flops(work, tmp_path) == 3 * 2 * 2 * 8 * 12 * 6 * 4 * 3 * 5


def test_attention_of_a_trace_is_that_of_the_formula(tmp_path: Path) -> None:
    """Two products forward and five backward. torch's counter has no formula for the CPU's attention."""
    query, keys = (2, 4, 33, 16), (2, 4, 20, 16)
    work = lambda: scaled_dot_product_attention(_inputs(*query), _inputs(*keys), _inputs(*keys))  # noqa: E731
    assert traced_flops(work, tmp_path) == 7 * 2 * 2 * 4 * 33 * 20 * 16


def traced_flops(work: Callable[[], torch.Tensor], folder: Path) -> float:
    """FLOPs of forward and backward that a real trace of the CPU's operators has."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        work().sum().backward()
    profiler.export_chrome_trace(str(folder / "trace.json"))
    flops = read_kineto(folder / "trace.json").flops
    return float(flops[flops == flops].sum())
