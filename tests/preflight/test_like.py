"""`plan search --like` reads the JSON that a preflight writes."""

import json
from pathlib import Path

import pytest

from tests.preflight.made import places
from tests.preflight.test_shown import CONFIGURED
from traincope.errors import UsageError
from traincope.plan.search.rates import read_preflight
from traincope.preflight.document import to_document
from traincope.preflight.judging.judgement import judge
from traincope.preflight.measurements import Measurements, Quantity, Rate, Round, Settings, SweepTime

HOSTS = ["a", "a", "b", "b"]
GROUPS = {"tp": (1e-6, 4e10, ((0, 1), (2, 3))), "dp": (1e-5, 1e10, ((0, 2), (1, 3)))}
"""Axis -> seconds of a call without bytes, bytes/s, members."""


def written(file: Path, *, dtype: str = "bfloat16") -> Path:
    """The JSON of a job of two hosts, whose ranks compute 4e14 FLOP/s and copy 2e12 bytes/s."""
    amounts = {Quantity.PRODUCTS: 4e12, Quantity.MEMORY: 2e10}
    rates = tuple(
        Rate(
            rank=rank,
            quantity=quantity,
            amount=amount,
            seconds=dict.fromkeys(Round, (0.01,)),
            dtype=dtype if quantity is Quantity.PRODUCTS else None,
        )
        for rank in range(len(HOSTS))
        for quantity, amount in amounts.items()
    )
    swept = tuple(
        SweepTime(
            axis=axis, operation="all_reduce", ranks=group, num_bytes=size, seconds=(latency + size / bytes_per_second,)
        )
        for axis, (latency, bytes_per_second, groups) in GROUPS.items()
        for group in groups
        for size in (1 << 12, 1 << 26)
    )
    measured = Measurements(places=places(HOSTS), rates=rates, sweeps=swept)
    file.write_text(json.dumps(to_document(judge(measured, CONFIGURED, Settings()), measured)))
    return file


def test_the_rates_of_a_written_preflight_are_those_that_it_measured(tmp_path: Path) -> None:
    """In groups of two, an all-reduce sends its bytes once, in two steps."""
    rates = read_preflight(written(tmp_path / "preflight.json"))
    assert (rates.flops_per_second, rates.memory_bytes_per_second) == pytest.approx((4e14, 2e12))
    assert rates.node is not None
    assert rates.network is not None
    assert (rates.node.latency_seconds, rates.node.bytes_per_second) == pytest.approx((0.5e-6, 4e10))
    assert (rates.network.latency_seconds, rates.network.bytes_per_second) == pytest.approx((5e-6, 1e10))


def test_the_document_names_the_members_of_each_group(tmp_path: Path) -> None:
    document = json.loads(written(tmp_path / "preflight.json").read_text())
    assert {sweep["axis"]: sweep["groups"] for sweep in document["sweeps"]} == {
        "tp": [[0, 1], [2, 3]],
        "dp": [[0, 2], [1, 3]],
    }


def test_products_in_float32_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"in float32; run preflight with --set train\.precision=bf16$"):
        read_preflight(written(tmp_path / "preflight.json", dtype="float32"))
