"""The experts of a mixture, layer by layer, and the all-to-all that they make uneven."""

import io
from dataclasses import replace

from rich.console import Console

from tests.report.example import MS, analysis
from traincope.analysis import Analysis, ExpertLoads, LayerLoad, Uneven
from traincope.report.document import to_document
from traincope.report.text import render


def shown(found: Analysis) -> list[str]:
    console = Console(file=io.StringIO(), width=80)
    render(found, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def section(found: Analysis, head: str) -> list[str]:
    lines = shown(found)
    first = next(number for number, line in enumerate(lines) if line.startswith(head))
    return lines[first : lines.index("", first)]


def test_each_layer_has_its_hottest_and_its_coldest_expert() -> None:
    loads = ExpertLoads(
        layers=(LayerLoad(layer=0, tokens=(40, 10, 30, 0)), LayerLoad(layer=1, tokens=(25, 25, 25, 25))),
        padding=20,
        dropped=0,
    )
    assert section(replace(analysis(), experts=loads), "EXPERTS") == [
        "EXPERTS  180 rows a step over all layers and ranks; 10.0 % of what was",
        "multiplied is padding",
        "    layer  experts  rows  hottest  x mean  coldest  x mean",
        "    0            4    80        0    2.00        3    0.00",
        "    1            4   100        0    1.00        0    1.00",
    ]


def test_of_many_layers_the_most_uneven_are_shown_in_their_order() -> None:
    layers = tuple(LayerLoad(layer=number, tokens=(100.0 + number % 10, 100)) for number in range(20))
    lines = section(replace(analysis(), experts=ExpertLoads(layers=layers, padding=0, dropped=200)), "EXPERTS")
    assert [line.split()[0] for line in lines[2:-1]] == ["6", "7", "8", "9", "16", "17", "18", "19"]
    assert lines[-1] == "    the 8 most uneven of 20 layers"
    assert "4.7 % of choices dropped" in lines[0]


def test_without_experts_nothing_is_said_of_them() -> None:
    assert not any(line.startswith("EXPERTS") for line in shown(analysis()))
    assert to_document(analysis())["utilization"]["experts"] is None


def test_an_uneven_operation_says_who_sends_more_and_what_that_costs_a_step() -> None:
    """12 ms over the 6 steps of both ranks."""
    found = analysis()
    uneven = replace(
        found.comm[0], axis="ep", operation="all_to_all", uneven=Uneven(ranks=(1, 3), ratio=1.5, cost_ns=12 * MS)
    )
    found = replace(found, comm=(uneven,))
    assert section(found, "COMMUNICATION")[-1] == (
        "    ep all_to_all: ranks 1, 3 send 1.50 x the mean; the excess takes 2.00"
    )
    assert (to_document(found)["comm"] or [])[0]["uneven"] == {"ranks": [1, 3], "ratio": 1.5, "cost_ns": 12 * MS}
