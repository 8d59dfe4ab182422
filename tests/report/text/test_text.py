import io
import re
from dataclasses import replace
from pathlib import Path

from rich.console import Console

import traincope
from tests.report.example import END_NS, MS, START_NS, analysis, apart, document, without_steps
from traincope.analysis import Analysis, Goodput, MeasuredOverhead, MemoryUse, RequestedWindow
from traincope.analysis.memory.split import MemorySplit, RankSplits
from traincope.explanations import explanations
from traincope.plan.pipeline.actions import Action
from traincope.plan.pipeline.schedule import TimedAction, Timetable
from traincope.report.document.document import to_document
from traincope.report.schema import Document, Fault, OpenRecord, plain
from traincope.report.text.text import render, render_document

REPORT = """\
demo-7f3a
2 ranks (pp 2), 3 steps, median step 100 ms (mean 100 ms)

VERDICT  by saving (share of step time) x confidence; savings do not add up
 1. pipeline bubble  all ranks, all steps; confidence high; saves 8.9 %
    23.0 % of step time is pipeline idle; 1F1B with 4 microbatches cannot go
    below 20.0 %.
    do: Use 8 microbatches: theory falls to 11.1 %.
    meaning, remedy, check: traincope explain pipeline_bubble

WHERE THE TIME WENT  mean step 100 ms over 2 ranks and 3 steps
    forward                27.5 %  27.50 ms ████████████████████████▊
    backward               40.0 %  40.00 ms ████████████████████████████████████
    optimizer               2.0 %   2.00 ms █▊
    exposed_transfer[pp]    3.0 %   3.00 ms ██▊
    exposed_wait[fsdp]      2.5 %   2.50 ms ██▎
    bubble.schedule        20.0 %  20.00 ms ██████████████████
    bubble.imbalance        4.0 %   4.00 ms ███▋
    bubble.jitter          -1.0 %  -1.00 ms
    unattributed            2.0 %   2.00 ms █▊
    step                  100.0 % 100.00 ms
    not measured, so part of unattributed: exposed_memory, launch_gap,
    kernel_wait

UTILIZATION  MFU unknown: no FLOPs are recorded

PIPELINE BUBBLE  23.0 % of step time, theory 20.0 % (1f1b, 4 microbatches)
    stage  schedule  imbalance  jitter  bubble
    0        20.0 %      4.0 %  -1.0 %  23.0 %
    1        20.0 %      4.0 %  -1.0 %  23.0 %
    negative jitter: less idle time than with each action's median

COMMUNICATION  means per rank and step; times in ms, bus bandwidth in GB/s
    axis, operation  count     bytes  transfer  wait  exposed  GB/s
    pp send            4.0   4.0 MiB      3.00  0.00     3.00  1.40
    fsdp all_gather    8.0  16.0 MiB      1.00  2.50     2.50     -

RANKS  means per step
    rank  step ms  compute  exposed  bubble  straggler wait ms
    0      100.00   67.0 %    8.0 %  23.0 %               0.00
    1      100.00   72.0 %    3.0 %  23.0 %               5.00  straggler

RECORDING
    1,234 events, 0 dropped, recorder overhead not measured
    excluded from all averages as warm-up: step 0
    one clock for all ranks
"""

RESTART = Path(__file__).parents[3] / "sample_runs" / "restart"


def shown(document: Document, results: Analysis | None = None, *, width: int = 80, terminal: bool = False) -> str:
    system = "truecolor" if terminal else None
    file = io.StringIO()
    render_document(
        document, results or analysis(), Console(file=file, width=width, force_terminal=terminal, color_system=system)
    )
    return file.getvalue()


def test_the_report_of_a_run_is_this_text_in_80_columns_without_colour() -> None:
    file = io.StringIO()
    render(analysis(), Console(file=file, width=80))
    assert file.getvalue() == REPORT


def drawn_step() -> Analysis:
    """GPipe of two microbatches, rank 1 a little late."""
    rows = [
        [("F", 0, 0, 10), ("F", 1, 10, 20), ("B", 0, 52, 72), ("B", 1, 72, 92)],
        [("F", 0, 12, 22), ("F", 1, 22, 32), ("B", 0, 32, 52), ("B", 1, 52, 72)],
    ]
    ran = {
        rank: tuple(TimedAction(Action(kind, rank, number), begin * MS, end * MS) for kind, number, begin, end in row)
        for rank, row in enumerate(rows)
    }
    results = analysis()
    assert results.bubble is not None
    return replace(results, bubble=replace(results.bubble, step=3, timetable=Timetable(rows=ran, span=92 * MS)))


def test_a_recorded_step_is_drawn_below_its_bubble_where_it_fits() -> None:
    section = shown(document(), drawn_step()).partition("PIPELINE BUBBLE")[2].partition("\n\n")[0].splitlines()
    assert section[5:] == [
        "    step 3, the step of median length",
        "    0 F0 F1 ··········B0    B1     34.8 %",
        "    1 ····F0 F1 B0    B1    ······ 34.8 %",
        "    F forward, B backward; left: rank; right: its idle share",
    ]
    narrow = " ".join(shown(document(), drawn_step(), width=24).split())
    assert (match := re.search(r"step 3, the step of median length: its drawing needs (\d+) columns", narrow))
    assert "its drawing needs" in " ".join(shown(document(), drawn_step(), width=int(match[1]) - 1).split())
    assert "its drawing needs" not in " ".join(shown(document(), drawn_step(), width=int(match[1])).split())


def test_an_end_is_in_one_step_or_outside_steps_but_never_in_all_steps() -> None:
    ended = document()
    ended["verdict"][0].update(kind="killed_rank", ranks=[1], steps=[])
    assert " 1. killed rank  rank 1; confidence high" in shown(ended)
    ended["verdict"][0].update(steps=[17])
    assert " 1. killed rank  rank 1, step 17; confidence high" in shown(ended)


def test_the_verdict_comes_before_every_number() -> None:
    assert REPORT.index("VERDICT") < REPORT.index("WHERE THE TIME WENT") < REPORT.index("RANKS")


def test_no_line_leaves_the_console_and_none_ends_in_blanks() -> None:
    for width in (40, 60, 80, 200):
        for line in shown(document(), width=width).splitlines():
            assert len(line) <= width
            assert line == line.rstrip()


def test_a_run_without_steps_prints_what_is_missing() -> None:
    assert shown(to_document(without_steps())) == (
        "demo-7f3a\n"
        "2 ranks (pp 2), 0 steps\n"
        "\n"
        "VERDICT\n"
        " 1. no steps  all ranks, all steps; confidence unknown\n"
        "    no step was recorded\n"
        "    do: run longer\n"
        "    meaning, remedy, check: traincope explain no_steps\n"
        "\n"
        "WHERE THE TIME WENT  unknown: no complete step was recorded\n"
        "\n"
        "RECORDING\n"
        "    1,234 events, 0 dropped, recorder overhead not measured\n"
        "    one clock for all ranks\n"
    )


def fault(kind: str, **fields: object) -> Fault:
    empty: Fault = {
        "kind": kind,
        "page": explanations()[kind].place,
        "mark": False,
        "at_ns": START_NS + 1_500 * MS,
        "ranks": [],
        "step": None,
        "attempt": None,
        "training_step": None,
        "timed": True,
        "what": kind,
        "evidence": "",
        "confidence": "high",
        "lasted_ns": None,
        "follows": False,
        "open_records": [],
    }
    return {**empty, **fields}  # type: ignore[typeddict-item]


def no_end(rank: int, *held: OpenRecord, at_ns: int = END_NS) -> Fault:
    return fault("no_end", ranks=[rank], at_ns=at_ns, open_records=list(held))


def test_a_rank_with_an_unknown_end_is_shown_with_its_open_events() -> None:
    silent = document()
    outer: OpenRecord = {"what": "backward", "axis": None, "step": 17, "duration_ns": 3_300 * MS}
    inner: OpenRecord = {"what": "all_gather", "axis": "fsdp", "step": 17, "duration_ns": 3_200 * MS}
    silent["faults"] = [no_end(1, inner)]
    assert "    rank 1: its records end in all_gather on fsdp, step 17, after 3.20 s\n" in shown(silent)
    assert "FAULTS" not in shown(silent)
    silent["faults"] = [no_end(1, outer, inner, at_ns=END_NS - 53 * MS)]
    assert (
        "    rank 1: its records end in all_gather on fsdp, step 17, after 3.20 s (also open: backward), "
        "53.0 ms before the end of the run\n"
    ) in shown(silent, width=200)


def test_unknown_ends_of_many_ranks_are_counted_after_the_fifth() -> None:
    lost = document()
    lost["faults"] = [no_end(rank) for rank in range(64)]
    section = shown(lost).partition("RECORDING\n")[2].splitlines()
    assert section[4] == "    rank 4: its records end with no open event"
    assert section[5] == "    59 more ranks without a recorded end (see --format json)"
    assert section[6].startswith("    1,234 events")


def test_faults_precede_the_verdict_and_following_ends_share_one_line() -> None:
    faulty = document()
    after = {"at_ns": START_NS + 1_600 * MS, "step": 17, "follows": True}
    faulty["faults"] = [
        fault("checkpoint", mark=True, at_ns=START_NS + 900 * MS, what="save checkpoint", step=9, lasted_ns=20 * MS),
        fault("not_finite", ranks=[0, 1], step=16, what="loss is NaN", evidence="it was 2.5 before"),
        fault("killed", ranks=[2], step=17, what="was killed (signal 9), noted by the launcher"),
        fault("exception", ranks=[0], what="RuntimeError at train.py:3", **after),
        fault("signal", ranks=[1], what="SIGTERM in wait (threading.py:1)", **after),
        fault("signal", ranks=[3], what="SIGTERM in step (train.py:9)", **after),
    ]
    section = shown(faulty, width=100).partition("FAULTS")[2].partition("\n\nVERDICT")[0]
    assert section == (
        "  by time since the first record\n"
        "     after  step     rank\n"
        "    900 ms     9      all  save checkpoint, 20.0 ms\n"
        "    1.50 s    16     0, 1  loss is NaN; it was 2.5 before\n"
        "    1.50 s    17        2  was killed (signal 9), noted by the launcher\n"
        "    1.60 s    17  0, 1, 3  ended after that: SIGTERM (2), RuntimeError at train.py:3 (1)"
    )


def test_only_the_first_faults_of_a_kind_are_shown_and_only_a_few_marks() -> None:
    faulty = document()
    faulty["faults"] = [fault("slow_step", step=step, what=f"took {step} times the median") for step in range(20)]
    faulty["faults"] += [fault("evaluation", mark=True, step=step) for step in range(6)]
    section = shown(faulty).partition("FAULTS")[2].partition("\n\nVERDICT")[0].splitlines()
    assert [line.split()[-1] for line in section[2:]] == ["median"] * 3 + ["json)"]
    assert section[-1].strip() == "17 more: slow step (see --format json)"


def test_steps_without_detail_are_counted_separately() -> None:
    lowered = document()
    assert "detail" not in shown(lowered, width=300)
    lowered["run"]["steps"] = 81
    lowered["recorder"]["unwatched_steps"] = [[20, 78], [80, 80]]
    assert " 81 steps, 21 of them in detail, median step" in shown(lowered, width=300)


def test_the_sampling_is_told_with_what_it_cost() -> None:
    sampled = document()
    sampled["recorder"]["unwatched_steps"] = [[16, 31], [40, 500]]
    sampling = replace(
        analysis().sampling,
        steps=500,
        sampled_steps=22,
        windows=2,
        last_sampled=39,
        measured_overhead=MeasuredOverhead(estimate=0.002, low=-0.0012, high=0.0051),
    )
    sampled["recorder"]["sampling"] = plain(sampling)
    recording = shown(sampled, width=300).partition("RECORDING\n")[2]
    assert (
        "recorded in detail: 22 of 500 steps, in 2 windows up to step 39; all sums stand on 3 of these, without first"
        in recording
    )
    assert "detail changed a step's time by +0.2 % (95 % interval: -0.1 % to +0.5 %)" in recording


def test_requested_windows_are_listed_with_their_reason_and_what_became_of_them() -> None:
    window = RequestedWindow(
        first_step=65,
        last_step=84,
        cause="profile",
        reason="traincope profile",
        at_step=None,
        kernels=True,
        recorded_steps=20,
        ranks_without=(),
    )
    ignored = RequestedWindow(
        first_step=97,
        last_step=103,
        cause="spike",
        reason="a spike (step 80)",
        at_step=80,
        kernels=False,
        recorded_steps=0,
        ranks_without=(1,),
    )
    results = analysis()
    asked = replace(results, sampling=replace(results.sampling, requested=(window, ignored)))
    recording = shown(to_document(asked), width=300).partition("RECORDING\n")[2]
    assert (
        "window requested by traincope profile: steps 65-84 with kernels, 20 of 20 in detail on all ranks\n"
        in recording
    )
    assert (
        "window requested by a spike (step 80): steps 97-103, 0 of 7 in detail on all ranks; rank 1 read the request "
        "too late or never\n"
    ) in recording


def test_marks_alone_are_not_faults() -> None:
    well = document()
    well["faults"] = [fault("checkpoint", mark=True)]
    assert "FAULTS" not in shown(well)


def test_memory_names_the_rank_that_grows_although_another_one_holds_more() -> None:
    uses = tuple(
        MemoryUse(
            rank=rank,
            measure="resident",
            last_bytes=(400 - rank) << 20,
            peak_bytes=500 << 20,
            phases={},
            growth_bytes_per_step=2048.0 * rank,
            leak=rank == 1,
        )
        for rank in (0, 1)
    )
    growing = replace(analysis(), memory=uses)
    section = shown(to_document(growing), growing, width=100).partition("MEMORY")[2].partition("\n\n")[0]
    assert section == (
        "  last samples and the fastest growth, each with its rank\n"
        "    measure          lowest        highest  per 100 steps   grows\n"
        "    resident  399.0 MiB (1)  400.0 MiB (0)  200.0 KiB (1)  rank 1"
    )


def test_memory_shows_what_the_fullest_rank_uses_it_for() -> None:
    use = MemoryUse(
        rank=0,
        measure="reserved",
        last_bytes=80 << 20,
        peak_bytes=80 << 20,
        phases={},
        growth_bytes_per_step=None,
        leak=False,
    )
    peaks = (
        MemorySplit(
            rank=rank,
            step=16,
            phase="forward",
            measure="reserved",
            total_bytes=(60 + 20 * rank) << 20,
            parameters_bytes=10 << 20,
            gradients_bytes=0,
            optimizer_bytes=20 << 20,
            buffers_bytes=0,
            activations_bytes=40 << 20,
            fragmentation_bytes=8 << 20,
            unknown_bytes=2 << 20,
            reason=None,
        )
        for rank in (0, 1)
    )
    splits = tuple(RankSplits(peak=peak, early={}, last=peak) for peak in peaks)
    results = replace(analysis(), memory=(use,), memory_splits=splits)
    section = " ".join(shown(document(), results).partition("MEMORY")[2].partition("\n\n")[0].split())
    assert section.endswith(
        "rank 1 at most, after forward in step 16: of 80.0 MiB reserved, parameters 10.0 MiB, optimizer state "
        "20.0 MiB, activations 40.0 MiB, unknown 2.0 MiB, fragmentation 8.0 MiB"
    )


def test_goodput_lists_the_parts_of_the_time_and_has_the_reason_if_unknown() -> None:
    job = Goodput(
        attempts=(),
        elapsed_ns=100_000 * MS,
        steps_done=70,
        steps_ns=88_000 * MS,
        steps_lost=5,
        lost_ns=10_000 * MS,
        reason=None,
        steps_rolled_back=2,
        rolled_back_ns=3_000 * MS,
        steps_skipped=1,
        skipped_ns=1_000 * MS,
        startup_ns=2_000 * MS,
        restart_ns=8_000 * MS,
        checkpoint_stall_ns=0,
        evaluation_ns=50 * MS,
        other_ns=1_950 * MS,
    )
    known = replace(analysis(), goodput=job)
    assert shown(to_document(known), known).partition("GOODPUT")[2].partition("\n\n")[0].splitlines() == [
        "  74.0 % of 100 s was productive",
        "    part                      time   share",
        "    productive steps        74.0 s  74.0 %",
        "    start-up                2.00 s   2.0 %",
        "    restarts                8.00 s   8.0 %",
        "    5 lost steps            10.0 s  10.0 %",
        "    2 rolled back steps     3.00 s   3.0 %",
        "    1 skipped step          1.00 s   1.0 %",
        "    outside complete steps  1.95 s   1.9 %",
    ]
    why = "attempt 1 loaded no recorded checkpoint"
    unknown = replace(job, steps_lost=None, lost_ns=None, reason=why, steps_skipped=None, skipped_ns=None)
    unsure = replace(analysis(), goodput=unknown)
    section = shown(to_document(unsure), unsure, width=150)
    assert f"GOODPUT  unknown: {why}; 70 steps took 88.0 s of 100 s\n" in section
    assert "start-up 2.00 s 2.0 %" in " ".join(section.split())


def test_goodput_lists_all_attempts_with_the_ends_of_the_earlier_ones() -> None:
    results = traincope.analyze(traincope.open_run(RESTART))
    restarted = to_document(results)
    section = shown(restarted, results, width=150).partition("GOODPUT")[2].partition("\n\n")[0].splitlines()
    assert [re.sub(r" in [\d.]+ s", "", line) for line in section if line.startswith("    attempt")] == [
        "    attempt 0: 13 steps; rank 1 was killed (signal 9)",
        "    attempt 1: 13 steps; the other sections describe it",
    ]
    assert results.goodput is not None
    first, last = results.goodput.attempts
    attempts = (*(replace(first, number=number) for number in range(20)), last)
    many = replace(results, goodput=replace(results.goodput, attempts=attempts))
    assert "    13 earlier attempts (see --format json)\n    attempt 13: " in shown(restarted, many, width=150)


def test_everything_that_makes_the_report_doubtful_is_named() -> None:
    doubtful = to_document(without_steps())
    doubtful["run"].update(world_size=4, missing_ranks=[2, 3], guessed_steps=9)
    doubtful["faults"] = [no_end(1)]
    doubtful["recorder"] = {
        "events": 7,
        "dropped": 3,
        "lost": {"names_refused": 1_200, "details_refused": 0, "stalls_unmeasured": 2, "lost_lines": None},
        "dropped_steps": [[61, 1_361], [1_400, 1_400]],
        "unwatched_steps": [[20, 60]],
        "overhead_seconds": None,
        "overhead_seconds_per_step": None,
        "overhead_ratio": None,
        "sampling": document()["recorder"]["sampling"],
        "probes": [
            {"name": "ddp", "state": "no DDP seen", "ranks": [0, 1]},
            {"name": "waits", "state": "off: level 0", "ranks": [1]},
            {"name": "memory", "state": "off: level 0", "ranks": [1]},
            {"name": "gc", "state": "on, but late", "ranks": [1]},
            {"name": "collectives", "state": "on", "ranks": [0]},
            {"name": "collectives", "state": "absent: AttributeError: x", "ranks": [1]},
        ],
        "problems": [f"segment {number} is damaged" for number in range(22)],
    }
    bare = to_document(apart(without_steps(), bound_ns=None))
    doubtful["clock"], doubtful["recorder"]["sampling"] = bare["clock"], bare["recorder"]["sampling"]
    assert shown(doubtful, without_steps()).partition("RECORDING\n")[2] == (
        "    rank 1: its records end with no open event\n"
        "    ranks 2, 3 of 4 left no readable records\n"
        "    7 events, 3 dropped, recorder overhead not measured\n"
        "    lost: 1,200 names, 2 marks on the compute stream (reasons: traincope doctor\n"
        "    RUN)\n"
        "    excluded from all averages because a rank dropped events in them: steps\n"
        "    61-1361, 1400\n"
        "    excluded from all averages because collectives were not recorded in them\n"
        "    (level 0): steps 20-60\n"
        + "".join(f"    segment {number} is damaged\n" for number in range(20))
        + "    2 more problems (see --format json)\n"
        "    probe ddp on ranks 0, 1: off, no DDP seen\n"
        "    probes waits, memory on rank 1: off, level 0\n"
        "    probe gc on rank 1: on, but late\n"
        "    probe collectives on rank 1: off, absent: AttributeError: x\n"
        "    collectives of rank 0 and rank 1 are not matched: different hooks recorded\n"
        "    them\n"
        "    step boundaries were inferred from the optimizer; call run.step() for exact\n"
        "    ones\n"
        "    clock error unknown on rank 1; do not compare times there with other hosts\n"
    )


def across(results: Analysis) -> str:
    return shown(to_document(results), results)


def test_the_clock_error_between_hosts_is_printed() -> None:
    assert across(apart(analysis(), drift_ns=-3_500)).endswith(
        "    all clocks are within 80.0 us of rank 0's, bounded by messages; smaller\n"
        "    differences between hosts are not compared\n"
        "    rank 1's clock drifts most: 3.5 ppm fast; its times are corrected\n"
    )
    assert "rank 1's clock drifts most: 12.2 ppm slow;" in across(apart(analysis(), drift_ns=12_250))
    steady = across(apart(analysis(), drift_ns=40))
    assert "drifts" not in steady
    assert "    waits and transfers across hosts within 80.0 us\n" in steady
    assert "across hosts within" not in across(apart(analysis(), bound_ns=None))


def test_markup_and_terminal_commands_in_names_are_only_characters() -> None:
    name = "[red]x[/red]\x1b[31m\n"
    hostile = document()
    hostile["run"]["id"] = name
    hostile["verdict"][0].update(kind=name, evidence=name, advice=name)
    hostile["recorder"]["problems"] = [name]
    held: OpenRecord = {"what": name, "axis": name, "step": None, "duration_ns": 1}
    hostile["faults"] = [no_end(0, held), fault("event", what=name, evidence=name)]
    results = analysis()
    results = replace(results, comm=(replace(results.comm[0], axis=name), *results.comm[1:]))
    written = shown(hostile, results, width=200)
    assert written.count("[red]x[/red]\\x1b[31m\\n") == 11
    assert "\x1b" not in written


def test_on_a_terminal_a_bar_has_the_colour_of_its_term() -> None:
    written = shown(document(), terminal=True)
    assert "\x1b[38;2;0;158;115m███" in written  # forward, #009E73
    assert "\x1b[38;2;0;114;178m███" in written  # bubble.schedule, #0072B2


def test_an_output_that_cannot_carry_blocks_gets_ascii_bars() -> None:
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    foreign = document()
    foreign["run"]["id"] = "Übung"
    render_document(foreign, analysis(), Console(file=file, width=80))
    file.seek(0)
    written = file.read()
    assert written.startswith("?bung\n2 ranks")
    assert "    backward               40.0 %  40.00 ms ####################################\n" in written


def test_ranks_with_the_most_straggler_wait_are_shown_among_many() -> None:
    large = document()
    assert large["ledger"] is not None
    row = large["ledger"]["ranks"][0]
    large["ledger"]["ranks"] = [{**row, "rank": rank} for rank in range(64)]
    few = analysis()
    (straggler,) = few.stragglers.named
    waits = tuple(
        replace(few.stragglers.ranks[0], rank=rank, straggler_wait_ns=30 * MS if rank == 40 else 0)
        for rank in range(64)
    )
    late = replace(few.stragglers, named=(replace(straggler, rank=40),), ranks=waits)
    large["stragglers"] = plain(late)
    section = shown(large, replace(few, stragglers=late)).partition("RANKS")[2].partition("\n\n")[0].splitlines()
    assert section[:2] == ["  means per step", "    16 of 64 ranks, those with the most straggler wait"]
    assert [int(line.split()[0]) for line in section[3:]] == [*range(15), 40]
    assert section[-1].endswith("10.00  straggler")


def test_ambiguous_waits_are_printed_with_their_reason() -> None:
    unsplit = document()
    assert unsplit["ledger"] is not None
    unsplit["ledger"]["ambiguous_waits"] = [
        {"axis": "fsdp", "reason": "records_missing", "ns": 6 * MS},
        {"axis": "pp", "reason": "not_replayed", "ns": 12 * MS},
    ]
    assert (
        "    1.00 ms per step of transfer on fsdp may be wait: records of their peers are missing\n"
        "    2.00 ms per step of transfer on pp may be wait: some stage has no actions recorded in these steps\n"
    ) in shown(unsplit, width=120)


def test_evaluation_is_printed_as_time_outside_the_steps() -> None:
    evaluated = document()
    assert evaluated["ledger"] is not None
    evaluated["ledger"].update(evaluation_ns=2 * 12_300 * MS, evaluation_ratio=0.045)
    assert "    evaluation, outside the steps: 12.3 s per rank, 4.5 % since the first step\n" in shown(evaluated)
