"""Each agent of a simulated job splits its waits as the matching of all records does."""

import random
from dataclasses import replace

import numpy as np
import pytest

from tests.live.tree.simulated import SimulatedJob
from tests.live.tree.trainings import job
from tests.timeline.build import run
from traincope.analysis import analyze
from traincope.analysis.attribution.stalls import AmbiguousWait
from traincope.analysis.attribution.terms import exposed_transfer, exposed_wait
from traincope.errors import ServerError
from traincope.live.tree.entries import ENTRY, MAX_ENTRIES, OwnParts, merged, names_of, read_entries
from traincope.live.tree.results import RESULT, read_results
from traincope.store import RankRecords
from traincope.timeline import Instances, build_timeline, match_instances
from traincope.timeline.collectives.elsewhere import members_hash
from traincope.topology import Host

STEPS, SECONDS = 3, 8


def on_one_clock(ranks: list[RankRecords]) -> Instances:
    """The truth: all records, on one host."""
    together = [replace(rank, info=replace(rank.info, host=ranks[0].info.host)) for rank in ranks]
    return match_instances(build_timeline(run(*together)))


def by_key(instances: Instances) -> dict[tuple[str, int], int]:
    return {
        (instances.channels[channel].group, int(sequence)): number
        for number, (channel, sequence) in enumerate(zip(instances.channel, instances.sequence, strict=True))
    }


def of_agent(simulated: SimulatedJob, name: str) -> Instances:
    agent = simulated.agents[name]
    timeline = build_timeline(run(*agent.ranks))
    return match_instances(replace(timeline, elsewhere=agent.known.elsewhere()))


@pytest.mark.parametrize(
    ("hosts", "ranks", "stride"), [(6, 1, 2), (20, 2, 3), pytest.param(75, 1, 5, marks=pytest.mark.sweep)]
)
def test_every_agent_finds_the_transfers_of_all_records(hosts: int, ranks: int, stride: int) -> None:
    """Clocks are up to 11 days apart. Where ends are bounded, the error of the clocks is added to an overlap that may
    be too long by as much.
    """
    rng = random.Random(hosts)
    made = job(hosts, ranks, steps=STEPS, rng=rng, stride=stride)
    simulated = SimulatedJob(made, rng=rng)
    simulated.run(seconds=SECONDS)
    truth = on_one_clock([rank for each in made.values() for rank in each])
    known, errors = by_key(truth), []
    assert truth.splits.all()
    for name in simulated.agents:
        instances = of_agent(simulated, name)
        for key, number in by_key(instances).items():
            assert instances.splits[number], (name, key)
            given, right = int(instances.transfer_ns[number]), int(truth.transfer_ns[known[key]])
            if truth.by_clock[known[key]]:
                errors.append(given - right)
                assert -1_000 <= given - right <= 2 * instances.clock_error_ns[number] + 1_000
            else:
                assert abs(given - right) <= 1_000  # the drift of 20 ppm over a transfer
    assert errors
    assert np.median(errors) < 2_000_000


def test_groups_of_a_silent_host_stay_unsplit_and_all_others_are_split() -> None:
    rng = random.Random(3)
    simulated = SimulatedJob(job(12, 1, steps=STEPS, rng=rng, stride=2), rng=rng)
    simulated.run(seconds=SECONDS, silent={"host-0011"})
    for name in set(simulated.agents) - {"host-0011"}:
        instances = of_agent(simulated, name)
        splits = {key: bool(instances.splits[number]) for key, number in by_key(instances).items()}
        assert {key[0] for key, split in splits.items() if split} == ({"part 0"} if int(name[-4:]) % 2 == 0 else set())
        assert not any(split for key, split in splits.items() if key[0] == "world")


def test_waits_in_groups_of_a_silent_host_are_labelled_and_stay_in_transfer() -> None:
    """Host 11 is in the group of all ranks. That of even ranks, on ep, is split as if all records were here."""
    rng = random.Random(3)
    made = job(12, 1, steps=STEPS, rng=rng, stride=2, with_stalls=True)
    simulated = SimulatedJob(made, rng=rng)
    simulated.run(seconds=SECONDS, silent={"host-0011"})
    agent = simulated.agents["host-0002"]
    here = build_timeline(run(*agent.ranks))
    (labelled,) = analyze(replace(here, elsewhere=agent.known.elsewhere())).ledger.ranks
    together = [replace(rank, info=replace(rank.info, host=Host(name="", boot_id=""))) for (rank,) in made.values()]
    (whole,) = (rank for rank in analyze(build_timeline(run(*together))).ledger.ranks if rank.rank == 2)
    transfer, wait = exposed_transfer("dp"), exposed_wait("dp")
    assert set(labelled.ambiguous_waits) == {("dp", AmbiguousWait.RECORDS_MISSING)}
    assert not np.any(labelled.terms.get(wait, 0))
    in_dp = whole.terms[transfer] + whole.terms[wait]
    assert np.array_equal(labelled.ambiguous_waits["dp", AmbiguousWait.RECORDS_MISSING], labelled.terms[transfer])
    assert np.abs(labelled.terms[transfer] - in_dp).max() <= 1_000, "the drift of 20 ppm over 31 ms"
    for term in (exposed_transfer("ep"), exposed_wait("ep")):
        assert np.abs(labelled.terms[term] - whole.terms[term]).max() <= 2_000_000, "the error of the clocks"
    assert (whole.terms[exposed_wait("ep")] > 0).any()


def test_a_message_that_arrives_twice_completes_nothing() -> None:
    """Its ranks would stand for others. A sum of hashes is that of all members only if each is in it once."""
    rng = random.Random(4)
    simulated = SimulatedJob(job(6, 1, steps=STEPS, rng=rng, stride=1), rng=rng)
    simulated.run(seconds=SECONDS, repeating={"host-0003"}, silent={"host-0004"})
    assert all(not of_agent(simulated, name).splits.any() for name in simulated.agents)


def test_members_with_other_operations_are_not_one_collective() -> None:
    rng = random.Random(5)
    made = dict(job(6, 1, steps=STEPS, rng=rng, stride=1))
    made["host-0002"] = [replace(made["host-0002"][0], names=("broadcast",))]
    simulated = SimulatedJob(made, rng=rng)
    simulated.run(seconds=SECONDS)
    assert not of_agent(simulated, "host-0000").splits.any()


@pytest.mark.parametrize(("count", "splits"), [(7, True), (8, False)])
def test_members_that_began_to_count_at_different_collectives_are_not_split(count: int, splits: bool) -> None:
    """Torch's own count is 7 on all others at the window's first collective."""
    rng = random.Random(6)
    made = {name: list(ranks) for name, ranks in job(6, 1, steps=STEPS, rng=rng, stride=1).items()}
    for name, (rank,) in made.items():
        (segment,) = rank.segments
        records = segment.records.copy()
        records["tag"][records["sequence"] == 0] = count if name == "host-0002" else 7
        made[name] = [replace(rank, segments=(replace(segment, records=records),))]
    simulated = SimulatedJob(made, rng=rng)
    simulated.run(seconds=SECONDS)
    instances = of_agent(simulated, "host-0005")
    assert instances.splits.tolist() == [splits] * len(instances)


def test_sums_do_not_depend_on_the_order_of_their_parts() -> None:
    rng = random.Random(7)
    ranks = [rank for each in job(6, 1, steps=STEPS, rng=rng, stride=2).values() for rank in each]
    parts = [OwnParts().new(rank, names_of(rank), own={rank.rank}) for rank in ranks]
    whole = merged(np.concatenate(parts))
    rng.shuffle(parts)
    in_pairs = [merged(np.concatenate(parts[at : at + 2])) for at in range(0, 6, 2)]
    assert merged(np.concatenate(in_pairs)).tobytes() == whole.tobytes()
    assert (whole["members"] == whole["all_members"]).all()


def test_parts_of_overlapping_copies_count_once() -> None:
    rng = random.Random(8)
    (rank,) = job(5, 1, steps=STEPS, rng=rng, stride=1)["host-0000"]
    parts = OwnParts()
    assert len(parts.new(rank, names_of(rank), own={0})) == 2 * STEPS
    assert len(parts.new(rank, names_of(rank), own={0})) == 0


def test_groups_of_this_host_alone_are_not_sent() -> None:
    rng = random.Random(9)
    (rank,) = job(5, 1, steps=STEPS, rng=rng, stride=1)["host-0000"]
    assert len(OwnParts().new(rank, names_of(rank), own=set(range(5)))) == 0


@pytest.mark.parametrize(
    "payload", [b"x" * (ENTRY.itemsize + 1), bytes(ENTRY.itemsize * (MAX_ENTRIES + 1))], ids=["damaged", "too many"]
)
def test_bytes_that_are_no_entries_are_refused(payload: bytes) -> None:
    with pytest.raises(ServerError, match="another size"):
        read_entries(payload)


def test_a_negative_transfer_is_refused() -> None:
    results = np.zeros(1, dtype=RESULT)
    results["transfer_ns"] = -1
    with pytest.raises(ServerError, match="negative"):
        read_results(results.tobytes())


def test_hashes_of_disjoint_sets_add_up() -> None:
    assert (members_hash((0, 1)) + members_hash((2,))) % (1 << 64) == members_hash((0, 1, 2))
    assert members_hash((0, 0)) != members_hash((0, 1))
