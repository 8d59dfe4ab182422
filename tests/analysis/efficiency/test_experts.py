"""Expert loads from logged numbers, and the rank whose experts are hot."""

import struct

import pytest

from tests.analysis.lockstep import ENOUGH
from tests.timeline.build import Row, collective, group, phase, rank, stall, step, timeline
from traincope.analysis import Analysis, ExpertLoads, LayerLoad, analyze
from traincope.events import Kind, Phase
from traincope.store import RankRecords

EP = group("ep", 0, 1)


def logged(name: str, *values: float) -> list[Row]:
    """One value per step, from step 0 on."""
    return [
        Row(
            kind=Kind.SCALAR,
            start_ns=10 + 100 * number,
            end_ns=10 + 100 * number,
            name=name,
            step=number,
            value=struct.unpack("<q", struct.pack("<d", value))[0],
        )
        for number, value in enumerate(values)
    ]


def test_ranks_log_their_own_experts_and_replicas_add_up() -> None:
    """Layer 0 has its four experts on two ranks, layer 1 on one; rank 2 has the same as rank 0."""
    first = [*logged("expert_tokens[0.0]", 10, 20), *logged("expert_tokens[0.1]", 0, 0), *logged("expert_padding", 6)]
    second = [*logged("expert_tokens[0.2]", 35, 25), *logged("expert_tokens[0.3]", 5, 5), *logged("expert_dropped", 4)]
    third = [*logged("expert_tokens[0.0]", 25), *logged("expert_tokens[1.1]", 50), *logged("loss", 7.0)]
    result = analyze(timeline(rank(0, *first), rank(1, *second), rank(2, *third))).experts
    assert result == ExpertLoads(
        layers=(LayerLoad(layer=0, tokens=(40, 0, 30, 5)), LayerLoad(layer=1, tokens=(0, 50))),
        padding=6,
        dropped=4,
    )
    assert (result.layers[0].hottest, result.layers[0].ratio) == (0, pytest.approx(40 * 4 / 75))
    assert (result.hottest.layer, result.hottest.ratio) == (0, pytest.approx(40 * 4 / 75))
    assert (result.dropped_ratio, result.padding_ratio) == (pytest.approx(4 / 129), pytest.approx(6 / 131))


def test_without_logged_loads_there_is_no_result() -> None:
    assert analyze(timeline(rank(0, *logged("loss", 1.0)))).experts is None


def trained(
    *, sent: tuple[int, int], work: tuple[int, int], log: bool = False, lead_phase: Phase = Phase.FORWARD
) -> Analysis:
    """Steps of 100 on two ranks: `work` on each, then an all-to-all until both have joined, and 10 more."""
    members: list[RankRecords] = []
    for number in range(2):
        rows: list[Row] = logged("expert_tokens[2.3]", *[75.0] * ENOUGH) if log and number == 1 else []
        if log:
            rows += logged(f"expert_tokens[2.{number}]", *[25.0] * ENOUGH)
        for at in range(ENOUGH):
            begin, end = 100 * at, 100 * at + max(work) + 10
            back = collective(begin + work[number], end, name="all_to_all", sequence=at, at=at, num_bytes=sent[number])
            rows += [step(at, begin, begin + 100), phase(lead_phase, begin, begin + work[number], at=at)]
            rows += [back, stall(back, begin + work[number], end), phase(Phase.FORWARD, end, begin + 100, at=at)]
        members.append(rank(number, *rows, groups=[EP], coords={"ep": number}))
    return analyze(timeline(*members))


def test_a_rank_that_sends_more_and_comes_later_has_hot_experts_instead_of_being_a_straggler() -> None:
    """Rank 1 works 80 and rank 0 40 of 100, so half the ranks wait 40. In the transfer of 10, 300 of 1200 bytes
    exceed the mean: 2.5."""
    (finding, *others) = trained(sent=(600, 1200), work=(40, 80)).verdict
    assert (finding.kind, finding.ranks, finding.confidence) == ("hot_expert", (1,), "high")
    assert finding.evidence == (
        "rank 1 sends 1.33 times the mean of its group in all_to_all on ep; "
        "others wait 20.0 % of step time, the longer messages take 2.5 %"
    )
    assert finding.estimated_gain_ratio == pytest.approx(0.225)
    assert [other.kind for other in others] == ["exposed_transfer"]


def test_the_hot_expert_is_named_if_its_load_is_logged() -> None:
    (finding, *_) = trained(sent=(600, 1200), work=(40, 80), log=True).verdict
    assert "on ep: expert 3 of layer 2 gets 2.4 times its share of tokens; others wait" in finding.evidence


@pytest.mark.parametrize(
    ("sent", "work", "lead_phase"),
    [
        pytest.param((1000, 1000), (40, 80), Phase.FORWARD, id="no rank sends more"),
        pytest.param((1000, 1100), (40, 80), Phase.FORWARD, id="hardly more"),
        pytest.param((1200, 600), (40, 80), Phase.FORWARD, id="the other rank does"),
        pytest.param((600, 1200), (40, 80), Phase.DATA_WAIT, id="it is late for its data"),
    ],
)
def test_a_rank_that_is_late_for_another_reason_stays_a_straggler(
    sent: tuple[int, int], work: tuple[int, int], lead_phase: Phase
) -> None:
    result = {str(finding.kind): finding for finding in trained(sent=sent, work=work, lead_phase=lead_phase).verdict}
    assert result["straggler"].ranks == (1,)
    assert "hot_expert" not in result


def test_unequal_messages_without_cost_are_not_a_finding() -> None:
    assert "hot_expert" not in {finding.kind for finding in trained(sent=(600, 1200), work=(80, 80)).verdict}
