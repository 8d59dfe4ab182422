"""Energy of steps whose power is known."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.timeline.build import Row, phase, rank, step, timeline
from traincope.analysis import Analysis, analyze
from traincope.analysis.efficiency.energy import NO_READINGS, NO_STEP, TOO_SHORT, Energy
from traincope.events import GPU_ENERGY, Kind, Phase
from traincope.report.document.document import to_document
from traincope.store import RankRecords

SECOND = 1_000_000_000


def reading(at_ns: int, millijoules: int) -> Row:
    return Row(kind=Kind.GPU, start_ns=at_ns, end_ns=at_ns, name=GPU_ENERGY, value=millijoules)


def readings(watts: int, *, every_ns: int = SECOND, until_ns: int = 40 * SECOND, since: int = 7 * 10**12) -> list[Row]:
    """A constant power, read from 1 s before the first step on."""
    return [reading(at, since + watts * (at + SECOND) // 10**6) for at in range(-SECOND, until_ns + 1, every_ns)]


def steps(count: int, *, length_ns: int = 3 * SECOND) -> list[Row]:
    """Steps without gaps, two thirds of each in forward. The first is the warm-up."""
    rows = [step(at, at * length_ns, (at + 1) * length_ns) for at in range(count)]
    forwards = [phase(Phase.FORWARD, at * length_ns, at * length_ns + 2 * length_ns // 3, at=at) for at in range(count)]
    return [*rows, *forwards]


def on_gpu(number: int, *rows: Row, uuid: str | None = None, state: str = "on") -> RankRecords:
    records = rank(number, *rows)
    device = {} if uuid is None else {"name": "H100", "uuid": uuid}
    return replace(records, info=replace(records.info, device=device, probes={"hardware": state}))


def energy_of(*ranks: RankRecords) -> Energy:
    found = result(*ranks).energy
    assert found is not None
    return found


def result(*ranks: RankRecords) -> Analysis:
    return analyze(timeline(*ranks))


def test_a_constant_power_is_exact_for_every_step_and_term() -> None:
    """100 W: 300 J in each of 10 steps of 3 s, 200 of them in the 2 s of forward."""
    used = energy_of(on_gpu(0, *steps(11), *readings(100), uuid="a"))
    assert (used.joules_per_step, used.watts, used.reason) == (300.0, 100.0, None)
    (gpu,) = used.gpus
    assert (gpu.ranks, gpu.steps, gpu.joules, gpu.reading_ns) == ((0,), 10, 3_000.0, SECOND)
    assert used.kwh == pytest.approx(3_000 / 3.6e6)
    assert used.terms is not None
    assert used.terms["forward"] == pytest.approx(200.0)
    assert used.terms["compile"] is None
    assert sum(joules or 0.0 for joules in used.terms.values()) == pytest.approx(300.0)


def test_gpus_are_summed_and_ranks_that_share_one_count_it_once() -> None:
    """Ranks 0 and 1 share a GPU of 100 W, rank 2 has one of 50 W."""
    ranks = [
        on_gpu(0, *steps(11), *readings(100), uuid="a"),
        on_gpu(1, *steps(11), *readings(100), uuid="a"),
        on_gpu(2, *steps(11), *readings(50), uuid="b"),
    ]
    used = energy_of(*ranks)
    assert [(gpu.ranks, gpu.watts) for gpu in used.gpus] == [((0, 1), 100.0), ((2,), 50.0)]
    assert used.joules_per_step == 450.0


def test_the_counter_is_interpolated_at_the_borders_of_steps() -> None:
    """Readings each 2 s of a power that changes from 100 to 300 W at 12 s, a reading and a border of steps."""
    power = [(at, 100 * min(at, 12) + 300 * max(at - 12, 0)) for at in range(-2, 50, 2)]
    rows = [reading(at * SECOND, 10**6 + 1_000 * joules) for at, joules in power]
    (gpu,) = energy_of(on_gpu(0, *steps(11), *rows)).gpus
    assert gpu.joules == 100 * 9 + 300 * 21


def test_steps_outside_the_readings_and_at_a_reset_are_left_out() -> None:
    """Steps 1 to 20 last from 3 to 63 s. Readings end at 61 s, and the counter starts again between 30 and 31 s."""
    rows = [reading(at * SECOND, 1_000 * (500 * at if at <= 30 else 20 * at)) for at in range(62)]
    (gpu,) = energy_of(on_gpu(0, *steps(21), *rows)).gpus
    assert gpu.steps == 18
    assert gpu.joules == 500 * 27 + 20 * 27


def test_an_evaluation_is_not_energy_of_a_step() -> None:
    """Step 3 contains an evaluation of 1 s at 100 W."""
    evaluation = phase(Phase.EVALUATION, 11 * SECOND, 12 * SECOND, at=3)
    (gpu,) = energy_of(on_gpu(0, *steps(12), evaluation, *readings(100))).gpus
    assert (gpu.steps, gpu.joules_per_step) == (10, 300.0)


def test_without_enough_readings_the_energy_is_unknown_with_the_reason() -> None:
    known = on_gpu(0, *steps(11), *readings(100), uuid="a")
    lacking = on_gpu(1, *steps(11), uuid="b", state="off: nothing to watch: no GPU is in use")
    used = energy_of(known, lacking)
    assert used.reason == f"{NO_READINGS} (rank 1; hardware probe off: nothing to watch: no GPU is in use)"
    assert used.joules_per_step is used.watts is used.kwh is used.terms is None
    assert [gpu.ranks for gpu in used.gpus] == [(0,)]
    short = energy_of(on_gpu(0, *steps(4), *readings(100)))
    assert (short.reason, short.gpus) == (f"{TOO_SHORT} (rank 0)", ())
    assert energy_of(on_gpu(0, *readings(100))).reason == NO_STEP


def test_the_document_has_the_energy_and_its_price() -> None:
    """3,000 J at 0.25 per kWh."""
    analysis = result(on_gpu(0, *steps(11), *readings(100)))
    used = to_document(analysis, price_per_kwh=0.25)["energy"]
    assert used["gpus"] == [{"ranks": [0], "joules_per_step": 300.0, "watts": 100.0, "steps": 10, "reading_ns": SECOND}]
    assert (used["price_per_kwh"], used["money"]) == (0.25, pytest.approx(0.25 * 3_000 / 3.6e6))
    assert to_document(analysis)["energy"]["money"] is None


@pytest.mark.slow
@given(
    power=st.lists(st.integers(0, 700), min_size=45, max_size=45),
    length=st.integers(2, 4),
)
def test_steps_at_readings_have_exactly_the_energy_of_the_counter(power: list[int], length: int) -> None:
    """Readings each second, steps of whole seconds: any power."""
    counter = [sum(power[:at]) for at in range(len(power))]
    rows = [reading(at * SECOND, 1_000 * joules) for at, joules in enumerate(counter)]
    count = 44 // length
    (gpu,) = energy_of(on_gpu(0, *steps(count, length_ns=length * SECOND), *rows)).gpus
    assert gpu.joules == counter[count * length] - counter[length]
