"""FLOPs of recorded shapes: 2 x rows x inner x columns, and nothing where that is not sure."""

import json

import pytest

from traincope.ingest.products import Product, product


def told(name: str, dims: object, types: list[str], **others: object) -> Product | None:
    arguments = {"External id": 3, "Input type": types, "Input Dims": dims, "Ev Idx": 1, **others}
    return product(name, json.dumps(arguments)[1:-1])


def test_a_product_of_two_matrices() -> None:
    assert told("aten::mm", [[128, 64], [64, 32]], ["float", "float"]) == Product(2 * 128 * 64 * 32, "float32")


def test_what_is_added_is_no_factor() -> None:
    """Qwen's query projection over 32,768 tokens."""
    found = told("aten::addmm", [[1024], [32768, 1024], [1024, 1024], [], []], ["c10::BFloat16"] * 3 + ["Scalar"] * 2)
    assert found == Product(2 * 32768 * 1024 * 1024, "bfloat16")


def test_a_batch_of_products() -> None:
    assert told("aten::bmm", [[8, 4, 16], [8, 16, 2]], ["c10::Half"] * 2) == Product(2 * 8 * 4 * 16 * 2, "float16")


def test_shapes_are_read_also_where_they_end_the_arguments_or_lie_on_many_lines() -> None:
    arguments = json.dumps({"Input type": ["float", "float"], "Input Dims": [[2, 3], [3, 5]]}, indent=2)[1:-1]
    assert product("aten::mm", arguments) == Product(60, "float32")


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
def test_what_is_not_sure_is_not_said(name: str, dims: object, types: list[str]) -> None:
    assert told(name, dims, types) is None


def test_without_shapes_nothing_is_known() -> None:
    assert product("aten::mm", '"External id": 3, "Ev Idx": 1') is None
