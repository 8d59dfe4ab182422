"""The experts of a mixture, layer by layer, and the all-to-all that they make uneven."""

import io
from dataclasses import replace

from rich.console import Console

from tests.report.example import MS, analysis
from traincope.analysis import Analysis, ExpertLoads, LayerLoad, MessageImbalance
from traincope.report.document.document import to_document
from traincope.report.text.text import render


def shown(result: Analysis) -> list[str]:
    console = Console(file=io.StringIO(), width=80)
    render(result, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def section(result: Analysis, head: str) -> list[str]:
    lines = shown(result)
    first = next(number for number, line in enumerate(lines) if line.startswith(head))
    return lines[first : lines.index("", first)]


def routed(loads: ExpertLoads) -> Analysis:
    result = analysis()
    return replace(result, utilization=replace(result.utilization, experts=loads))


def test_each_layer_has_its_hottest_and_its_coldest_expert() -> None:
    loads = ExpertLoads(
        layers=(LayerLoad(layer=0, tokens=(40, 10, 30, 0)), LayerLoad(layer=1, tokens=(25, 25, 25, 25))),
        padding=20,
        dropped=0,
    )
    assert section(routed(loads), "EXPERTS") == [
        "EXPERTS  180 rows per step over all layers and ranks; 10.0 % of the multiplied",
        "rows are padding",
        "    layer  experts  rows  hottest  x mean  coldest  x mean",
        "    0            4    80        0    2.00        3    0.00",
        "    1            4   100        0    1.00        0    1.00",
    ]


def test_only_the_most_uneven_layers_are_shown_in_order() -> None:
    layers = tuple(LayerLoad(layer=number, tokens=(100.0 + number % 10, 100)) for number in range(20))
    lines = section(routed(ExpertLoads(layers=layers, padding=0, dropped=200)), "EXPERTS")
    assert [line.split()[0] for line in lines[2:-1]] == ["6", "7", "8", "9", "16", "17", "18", "19"]
    assert lines[-1] == "    the 8 most uneven of 20 layers"
    assert "4.7 % of choices dropped" in lines[0]


def test_a_run_without_experts_has_no_section_on_them() -> None:
    assert not any(line.startswith("EXPERTS") for line in shown(analysis()))
    assert to_document(analysis())["utilization"]["experts"] is None


def test_message_imbalance_names_the_ranks_and_its_cost_per_step() -> None:
    """12 ms over the 6 steps of both ranks."""
    result = analysis()
    uneven = replace(
        result.comm[0],
        axis="ep",
        operation="all_to_all",
        message_imbalance=MessageImbalance(ranks=(1, 3), ratio=1.5, cost_ns=12 * MS),
    )
    result = replace(result, comm=(uneven,))
    assert section(result, "COMMUNICATION")[-1] == (
        "    ep all_to_all: ranks 1, 3 send 1.50 x the mean; excess 2.00 ms per step"
    )
    assert (to_document(result)["comm"] or [])[0]["message_imbalance"] == {
        "ranks": [1, 3],
        "ratio": 1.5,
        "cost_ns": 12 * MS,
    }
