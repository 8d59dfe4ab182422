"""FLOPs of recorded shapes, 2 x rows x inner x columns; None if the shapes are uncertain."""

import json

import msgspec
import pytest

from traincope.ingest.events import Arguments
from traincope.ingest.matmul_flops import Product, product


def recorded_product(name: str, dims: object, types: list[str], **others: object) -> Product | None:
    arguments = {"External id": 3, "Input type": types, "Input Dims": dims, "Ev Idx": 1, **others}
    return product(name, parsed(arguments))


def parsed(arguments: dict[str, object]) -> Arguments:
    return msgspec.json.decode(json.dumps(arguments), type=Arguments)


def test_a_product_of_two_matrices() -> None:
    assert recorded_product("aten::mm", [[128, 64], [64, 32]], ["float", "float"]) == Product(
        2 * 128 * 64 * 32, "float32"
    )


def test_the_added_input_is_not_a_factor() -> None:
    """Qwen's query projection over 32,768 tokens."""
    result = recorded_product(
        "aten::addmm", [[1024], [32768, 1024], [1024, 1024], [], []], ["c10::BFloat16"] * 3 + ["Scalar"] * 2
    )
    assert result == Product(2 * 32768 * 1024 * 1024, "bfloat16")


def test_a_batch_of_products() -> None:
    assert recorded_product("aten::bmm", [[8, 4, 16], [8, 16, 2]], ["c10::Half"] * 2) == Product(
        2 * 8 * 4 * 16 * 2, "float16"
    )


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
    ],
)
def test_other_operators_and_invalid_shapes_have_no_product(name: str, dims: object, types: list[str]) -> None:
    assert recorded_product(name, dims, types) is None


def test_without_shapes_there_is_no_product() -> None:
    assert product("aten::mm", parsed({"External id": 3, "Ev Idx": 1})) is None
