"""Bytes of recorded shapes and strides, computed by hand; and of a real trace, by the sizes of its tensors."""

import json
from pathlib import Path

import msgspec
import pytest
import torch
from torch.nn.functional import layer_norm, scaled_dot_product_attention
from torch.profiler import ProfilerActivity, profile

from traincope.ingest import read_kineto
from traincope.ingest.traces.events import Arguments
from traincope.ingest.traces.recorded_call import recorded
from traincope.ingest.traces.shape_bytes import Traffic, shape_bytes
from traincope.store.side_tables.traces import UNKNOWN

BFLOAT16, FLOAT = "c10::BFloat16", "float"
Shape = list[int]


def contiguous(shape: Shape) -> Shape:
    strides = [1]
    for length in reversed(shape[1:]):
        strides.insert(0, strides[0] * length)
    return strides if shape else []


def moved(
    name: str,
    dims: list[Shape],
    types: list[str],
    *,
    strides: list[Shape] | None = None,
    values: list[str] | None = None,
) -> Traffic | None:
    arguments = {
        "Input Dims": dims,
        "Input type": types,
        "Input Strides": list(map(contiguous, dims)) if strides is None else strides,
        "Concrete Inputs": [""] * len(dims) if values is None else values,
    }
    call = recorded(msgspec.json.decode(json.dumps(arguments), type=Arguments))
    return shape_bytes(f"aten::{name}", call)


ROW, TABLE = [8], [4, 8]


@pytest.mark.parametrize(
    ("name", "dims", "types", "expected"),
    [
        ("mul", [TABLE, ROW], [FLOAT, FLOAT], (4 * 32 + 4 * 8, 4 * 32)),
        ("add", [[4, 1], [8], []], [BFLOAT16, BFLOAT16, "Scalar"], (2 * 4 + 2 * 8, 2 * 32)),
        ("mul", [TABLE, []], [BFLOAT16, "double"], (2 * 32 + 8, 2 * 32)),
        ("add", [TABLE, TABLE, []], [BFLOAT16, FLOAT, "Scalar"], (6 * 32, 4 * 32)),
        ("add", [TABLE, TABLE, []], [BFLOAT16, "c10::Half", "Scalar"], (4 * 32, 4 * 32)),
        ("where", [TABLE, ROW, []], ["bool", FLOAT, FLOAT], (32 + 4 * 8 + 4, 4 * 32)),
        ("eq", [TABLE, ROW], ["long int", "long int"], (8 * 32 + 8 * 8, 32)),
        ("add_", [TABLE, ROW, []], [FLOAT, FLOAT, "Scalar"], (4 * 32 + 4 * 8, 4 * 32)),
        ("copy_", [TABLE, TABLE, []], [BFLOAT16, FLOAT, "Scalar"], (4 * 32, 2 * 32)),
        ("fill_", [TABLE, []], [BFLOAT16, "Scalar"], (0, 2 * 32)),
        ("mm", [[4, 16], [16, 8]], [BFLOAT16] * 2, (2 * (64 + 128), 2 * 32)),
        ("addmm", [[8], [4, 16], [16, 8]], [BFLOAT16] * 3, (2 * (8 + 64 + 128), 2 * 32)),
        ("bmm", [[3, 4, 16], [3, 16, 8]], [FLOAT] * 2, (4 * 3 * (64 + 128), 4 * 3 * 32)),
    ],
)
def test_bytes_of_an_operator(name: str, dims: list[Shape], types: list[str], expected: tuple[int, int]) -> None:
    assert moved(name, dims, types) == expected


def test_an_expanded_dim_is_read_once() -> None:
    assert moved("mul", [TABLE, TABLE], [FLOAT, FLOAT], strides=[[8, 1], [0, 1]]) == (4 * 32 + 4 * 8, 4 * 32)


@pytest.mark.parametrize(
    ("values", "written"),
    [(["", "[1]", "False", ""], 2 * 4), (["", "[-2]", "True", ""], 2 * 8), (["", "[]", "", ""], 2)],
)
def test_a_reduction_writes_the_dims_that_stay(values: list[str], written: int) -> None:
    types = [BFLOAT16, "ScalarList", "Scalar", ""]
    assert moved("sum", [TABLE, [], [], []], types, values=values) == (2 * 32, written)


def test_a_reduction_may_have_another_dtype() -> None:
    types = [BFLOAT16, "ScalarList", "Scalar", "Scalar"]
    assert moved("mean", [TABLE, [], [], []], types, values=["", "[1]", "False", "6"]) == (2 * 32, 4 * 4)


def test_a_softmax_of_float16_may_become_float32() -> None:
    call = [TABLE, [], []], ["c10::Half", "Scalar", "Scalar"]
    assert moved("_softmax", *call, values=["", "1", "False"]) == (2 * 32, 2 * 32)
    assert moved("_softmax", *call, values=["", "1", "True"]) == (2 * 32, 4 * 32)


def test_a_convolution_and_its_backward() -> None:
    """14 x 14 positions become 7 x 7. A bias is absent, and only the gradient of the weight is asked for."""
    data, weight, out = 10 * 256 * 14 * 14, 512 * 256 * 3 * 3, 10 * 512 * 7 * 7
    shapes = [10, 256, 14, 14], [512, 256, 3, 3]
    assert moved(
        "convolution",
        [*shapes, [], [], [], [], [], [], []],
        [BFLOAT16, BFLOAT16, "", *["ScalarList"] * 3, "Scalar", "ScalarList", "Scalar"],
        values=["", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"],
    ) == (2 * (data + weight), 2 * out)
    assert moved(
        "convolution_backward",
        [[10, 512, 7, 7], *shapes, [], [], [], [], [], [], [], []],
        [*[BFLOAT16] * 3, *["ScalarList"] * 4, "Scalar", "ScalarList", "Scalar", ""],
        values=["", "", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1", "[False, True, False]"],
    ) == (2 * (out + data), 2 * weight)


def test_fused_attention_moves_no_scores() -> None:
    """The keys and values of 2 heads are expanded to 16."""
    query, heads = [4, 16, 128, 64], 4 * 128 * 64
    strides = [contiguous(query), [2 * 128 * 64, 0, 64, 1], [2 * 128 * 64, 0, 64, 1]]
    types = [*[BFLOAT16] * 3, "Scalar", "Scalar"]
    assert moved(
        "_scaled_dot_product_flash_attention", [query, query, query, [], []], types, strides=[*strides, [], []]
    ) == (2 * (16 + 1 + 1) * heads, 2 * 16 * heads)


@pytest.mark.parametrize(
    ("name", "dims", "types"),
    [
        ("mul", [TABLE, ROW, TABLE], [FLOAT] * 3),
        ("mul", [TABLE, [3]], [FLOAT] * 2),
        ("mul", [TABLE, ROW], ["long int"] * 2),
        ("add", [TABLE, []], [FLOAT, "TensorList"]),
        ("sum", [TABLE, []], ["int", ""]),
        ("unheard_of", [TABLE], [FLOAT]),
    ],
    ids=["a given result", "impossible shapes", "integers", "a list", "a sum of integers", "no formula"],
)
def test_uncertain_bytes_are_unknown(name: str, dims: list[Shape], types: list[str]) -> None:
    assert moved(name, dims, types) is None


def test_without_strides_the_bytes_are_unknown() -> None:
    call = {"Input Dims": [TABLE, TABLE], "Input type": [FLOAT, FLOAT]}
    assert shape_bytes("aten::mul", recorded(msgspec.json.decode(json.dumps(call), type=Arguments))) is None


def test_bytes_of_a_real_trace(tmp_path: Path) -> None:
    """Sizes by torch: of the arguments and results of each call."""
    x, y = torch.randn(64, 32), torch.randn(32)
    query = torch.randn(2, 4, 16, 8)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        product = x @ x.T
        layer_norm(x * y, (32,), y, y)
        x.bfloat16().float().relu_()
        product.sum(0)
        product.softmax(1)
        scaled_dot_product_attention(query, query, query)
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    trace = read_kineto(tmp_path / "trace.json")
    known = [
        (trace.names[trace.name[row]].removeprefix("aten::"), int(trace.read_bytes[row]), int(trace.written_bytes[row]))
        for row in range(len(trace))
        if trace.read_bytes[row] != UNKNOWN
    ]
    matrix, row = x.nbytes, y.nbytes
    assert known == [
        ("mm", 2 * matrix, product.nbytes),
        ("mul", matrix + row, matrix),
        ("native_layer_norm", matrix + 2 * row, matrix),
        ("copy_", matrix, matrix // 2),
        ("copy_", matrix // 2, matrix),
        ("relu_", matrix, matrix),
        ("sum", product.nbytes, product[0].nbytes),
        ("_softmax", product.nbytes, product.nbytes),
        ("_scaled_dot_product_flash_attention_for_cpu", 3 * query.nbytes, query.nbytes),
    ]
