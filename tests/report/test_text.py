import io
import re

from rich.console import Console

from tests.report.example import END_NS, MS, START_NS, analysis, document, without_steps
from traincope.report.document import to_document
from traincope.report.schema import Document, Fault, OpenRecord
from traincope.report.text import render, render_document

REPORT = """\
demo-7f3a
2 ranks (pp 2), 3 steps, median step 100 ms

VERDICT  savings are shares of step time
 1. pipeline bubble  all ranks, all steps; confidence high; saves 8.9 %
    23.0 % of step time is pipeline idle; 1F1B with 4 microbatches cannot go
    below 20.0 %.
    do: Use 8 microbatches: theory falls to 11.1 %.

WHERE THE TIME WENT  a step is 100 ms, mean over 2 ranks and 3 steps
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
    not visible here, so within unattributed: exposed_memory, launch_gap

UTILIZATION  MFU unknown: no FLOPs are recorded

PIPELINE BUBBLE  23.0 % of step time, theory 20.0 % (1f1b, 4 microbatches)
    stage  schedule  imbalance  jitter  bubble
    0        20.0 %      4.0 %  -1.0 %  23.0 %
    1        20.0 %      4.0 %  -1.0 %  23.0 %

COMMUNICATION  one rank, one step; times in ms, GB/s on the bus
    axis, operation  count     bytes  transfer  wait  exposed  GB/s
    pp send            4.0   4.0 MiB      3.00  0.00     3.00  1.40
    fsdp all_gather    8.0  16.0 MiB      1.00  2.50     2.50     -

RANKS  means of a step
    rank  step ms  compute  exposed  bubble  others waited ms
    0      100.00   67.0 %    8.0 %  23.0 %              0.00
    1      100.00   72.0 %    3.0 %  23.0 %              5.00  slowest

RECORDING
    1,234 events, 0 dropped, own cost not measured
    left out of all shares as warm-up: step 0
    one clock for all ranks
"""


def shown(document: Document, *, width: int = 80, terminal: bool = False) -> str:
    system = "truecolor" if terminal else None
    file = io.StringIO()
    render_document(document, Console(file=file, width=width, force_terminal=terminal, color_system=system))
    return file.getvalue()


def test_the_report_of_a_run_is_this_text_in_80_columns_without_colour() -> None:
    file = io.StringIO()
    render(analysis(), Console(file=file, width=80))
    assert file.getvalue() == REPORT


def drawn_step() -> Document:
    """GPipe of two microbatches, rank 1 a little late."""
    shown_step = document()
    assert shown_step["bubble"] is not None
    rows = [
        [("F", 0, 0, 10), ("F", 1, 10, 20), ("B", 0, 52, 72), ("B", 1, 72, 92)],
        [("F", 0, 12, 22), ("F", 1, 22, 32), ("B", 0, 32, 52), ("B", 1, 52, 72)],
    ]
    shown_step["bubble"].update(
        timetable_step=3,
        timetable=[
            {
                "rank": rank,
                "actions": [
                    {"kind": kind, "stage": rank, "microbatch": number, "start_ns": begin * MS, "end_ns": end * MS}
                    for kind, number, begin, end in row
                ],
            }
            for rank, row in enumerate(rows)
        ],
    )
    return shown_step


def test_a_recorded_step_is_drawn_below_its_bubble_where_it_fits() -> None:
    section = shown(drawn_step()).partition("PIPELINE BUBBLE")[2].partition("\n\n")[0].splitlines()
    assert section[4:] == [
        "    step 3, of median length",
        "    0 F0 F1 ··········B0    B1     34.8 %",
        "    1 ····F0 F1 B0    B1    ······ 34.8 %",
        "    F forward, B backward; left its rank, right its idle share",
    ]
    narrow = " ".join(shown(drawn_step(), width=24).split())
    assert (found := re.search(r"step 3, of median length, is drawn from (\d+) columns on", narrow))
    assert "is drawn from" in " ".join(shown(drawn_step(), width=int(found[1]) - 1).split())
    assert "is drawn from" not in " ".join(shown(drawn_step(), width=int(found[1])).split())


def test_an_end_is_in_one_step_or_in_none_and_never_in_all() -> None:
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


def test_a_run_without_steps_says_what_is_missing() -> None:
    assert shown(to_document(without_steps())) == (
        "demo-7f3a\n"
        "2 ranks (pp 2), 0 steps\n"
        "\n"
        "VERDICT\n"
        " 1. no steps  all ranks, all steps; confidence unknown\n"
        "    no step was recorded\n"
        "    do: run longer\n"
        "\n"
        "WHERE THE TIME WENT  unknown: no complete step was recorded\n"
        "\n"
        "RECORDING\n"
        "    1,234 events, 0 dropped, own cost not measured\n"
        "    one clock for all ranks\n"
    )


def fault(kind: str, **said: object) -> Fault:
    empty: Fault = {
        "kind": kind,
        "mark": False,
        "at_ns": START_NS + 1_500 * MS,
        "ranks": [],
        "step": None,
        "what": kind,
        "evidence": "",
        "confidence": "high",
        "lasted_ns": None,
        "follows": False,
        "open_records": [],
    }
    return {**empty, **said}  # type: ignore[typeddict-item]


def no_end(rank: int, *held: OpenRecord, at_ns: int = END_NS) -> Fault:
    return fault("no_end", ranks=[rank], at_ns=at_ns, open_records=list(held))


def test_a_rank_whose_end_is_unknown_is_shown_in_what_it_was_in() -> None:
    silent = document()
    outer: OpenRecord = {"what": "backward", "axis": None, "step": 17, "duration_ns": 3_300 * MS}
    inner: OpenRecord = {"what": "all_gather", "axis": "fsdp", "step": 17, "duration_ns": 3_200 * MS}
    silent["faults"] = [no_end(1, inner)]
    assert "    rank 1 was in all_gather on fsdp, step 17, for 3.20 s when its records end\n" in shown(silent)
    assert "FAULTS" not in shown(silent)
    silent["faults"] = [no_end(1, outer, inner, at_ns=END_NS - 53 * MS)]
    assert (
        "    rank 1 was in all_gather on fsdp, step 17, for 3.20 s (also open: backward) when its records end, "
        "53.0 ms before the run's last record\n"
    ) in shown(silent, width=200)


def test_unknown_ends_of_many_ranks_are_counted_after_the_fifth() -> None:
    lost = document()
    lost["faults"] = [no_end(rank) for rank in range(64)]
    section = shown(lost).partition("RECORDING\n")[2].splitlines()
    assert section[4] == "    rank 4 was in nothing that is watched when its records end"
    assert section[5] == "    59 more ranks came to no clean end (see --format json)"
    assert section[6].startswith("    1,234 events")


def test_faults_stand_before_the_verdict_and_what_follows_from_one_is_one_line() -> None:
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
        "  by time since the run began\n"
        "     after  step     rank\n"
        "    900 ms     9      all  save checkpoint, 20.0 ms\n"
        "    1.50 s    16     0, 1  loss is NaN; it was 2.5 before\n"
        "    1.50 s    17        2  was killed (signal 9), noted by the launcher\n"
        "    1.60 s    17  0, 1, 3  ended after that: SIGTERM (2), RuntimeError at train.py:3 (1)"
    )


def test_of_many_faults_of_a_kind_the_first_are_shown_and_marks_only_where_they_are_few() -> None:
    faulty = document()
    faulty["faults"] = [fault("slow_step", step=step, what=f"took {step} times the median") for step in range(20)]
    faulty["faults"] += [fault("evaluation", mark=True, step=step) for step in range(6)]
    section = shown(faulty).partition("FAULTS")[2].partition("\n\nVERDICT")[0].splitlines()
    assert [line.split()[-1] for line in section[2:]] == ["median"] * 3 + ["json)"]
    assert section[-1].strip() == "17 more: slow step (see --format json)"


def test_steps_without_communication_are_counted_beside_those_that_count() -> None:
    lowered = document()
    assert "level 0" not in shown(lowered, width=300)
    lowered["recorder"]["unwatched_steps"] = [[20, 78], [80, 80]]
    assert " steps and 60 more at level 0, median step" in shown(lowered, width=300)


def test_marks_alone_are_no_faults() -> None:
    well = document()
    well["faults"] = [fault("checkpoint", mark=True)]
    assert "FAULTS" not in shown(well)


def test_memory_is_the_least_and_the_most_of_a_rank() -> None:
    known = document()
    known["memory"] = [
        {
            "rank": rank,
            "measure": "resident",
            "last_bytes": (400 + rank) << 20,
            "peak_bytes": 500 << 20,
            "phases": {},
            "growth_bytes_per_step": 2048.0 * rank,
            "leak": rank == 1,
        }
        for rank in (0, 1)
    ]
    section = shown(known).partition("MEMORY")[2].partition("\n\n")[0]
    assert section == (
        "  of a rank when last looked; growth of the one that grows fastest\n"
        "    measure       least  rank       most  rank  growth a step\n"
        "    resident  400.0 MiB     0  401.0 MiB     1        2.0 KiB  grows"
    )


def test_goodput_is_one_line_and_admits_what_is_not_known() -> None:
    job = document()
    job["goodput"] = {
        "attempts": [],
        "elapsed_ns": 100_000 * MS,
        "steps_done": 70,
        "steps_ns": 88_000 * MS,
        "steps_lost": 5,
        "lost_ns": 10_000 * MS,
        "reason": None,
        "startup_ns": 2_000 * MS,
        "restart_ns": 8_000 * MS,
        "checkpoint_stall_ns": 0,
        "evaluation_ns": 50 * MS,
        "other_ns": 1_950 * MS,
        "productive_ns": 78_000 * MS,
        "productive_ratio": 0.78,
    }
    assert (
        "GOODPUT  78.0 % of 100 s was steps that last; startup 2.00 s; restarts 8.00 s; 5 lost steps 10.0 s; "
        "outside of complete steps 1.95 s\n"
    ) in shown(job, width=150)
    why = "attempt 1 loaded no checkpoint that was seen"
    job["goodput"].update(steps_lost=None, lost_ns=None, reason=why, productive_ns=None, productive_ratio=None)
    assert f"GOODPUT  unknown: {why}; 70 steps took 88.0 s of 100 s; startup 2.00 s; " in shown(job, width=150)


def test_everything_that_makes_the_report_doubtful_is_named() -> None:
    doubtful = to_document(without_steps())
    doubtful["run"].update(world_size=4, missing_ranks=[2, 3], guessed_steps=9)
    doubtful["faults"] = [no_end(1)]
    doubtful["clock"] = [{"rank": 0, "offset_ns": 0, "bound_ns": 0}, {"rank": 1, "offset_ns": 5, "bound_ns": None}]
    doubtful["recorder"] = {
        "events": 7,
        "dropped": 3,
        "lost": {"names_refused": 1_200, "details_refused": 0, "stalls_unmeasured": 2, "lost_lines": None},
        "dropped_steps": [[61, 1_361], [1_400, 1_400]],
        "unwatched_steps": [[20, 60]],
        "overhead_seconds": None,
        "overhead_seconds_per_step": None,
        "overhead_ratio": None,
        "probes": [
            {"name": "ddp", "state": "no DDP seen", "ranks": [0, 1]},
            {"name": "waits", "state": "off: level 0", "ranks": [1]},
            {"name": "memory", "state": "off: level 0", "ranks": [1]},
            {"name": "gc", "state": "on, but late", "ranks": [1]},
            {"name": "collectives", "state": "on", "ranks": [0]},
            {"name": "collectives", "state": "absent: AttributeError: x", "ranks": [1]},
        ],
        "problems": [f"segment {number} is damaged" for number in range(7)],
    }
    assert shown(doubtful).partition("RECORDING\n")[2] == (
        "    rank 1 was in nothing that is watched when its records end\n"
        "    ranks 2, 3 of 4 left nothing to read; what happened there is unknown\n"
        "    7 events, 3 dropped, own cost not measured\n"
        "    lost: 1,200 names, 2 stalls of the compute stream (traincope doctor RUN says\n"
        "    why)\n"
        "    left out of all shares, for some rank dropped them: steps 61-1361, 1400\n"
        "    left out of all shares, for no collectives were recorded in them (level 0):\n"
        "    steps 20-60\n"
        "    segment 0 is damaged\n"
        "    segment 1 is damaged\n"
        "    segment 2 is damaged\n"
        "    segment 3 is damaged\n"
        "    segment 4 is damaged\n"
        "    2 more could not be read (see --format json)\n"
        "    probe ddp is off, of ranks 0, 1: no DDP seen\n"
        "    probes waits, memory are off, of rank 1: level 0\n"
        "    probe gc is on, of rank 1: but late\n"
        "    probe collectives is off, of rank 1: absent: AttributeError: x\n"
        "    collectives are not matched between rank 0 and rank 1: they were not watched\n"
        "    alike\n"
        "    step boundaries were guessed from the optimizer; call run.step()\n"
        "    clock error is unknown on rank 1; do not compare their times with other\n"
        "    hosts\n"
    )


def test_how_far_the_clocks_of_hosts_may_be_apart_is_said() -> None:
    hosts = document()
    hosts["clock"][1].update(offset_ns=5, bound_ns=80_000, drift_ppm=-3.5, source="messages")
    assert shown(hosts).endswith(
        "    the hosts' clocks agree within 80.0 us with that of rank 0, by what they\n"
        "    sent; nothing finer is compared across hosts\n"
        "    that of rank 1 drifts most, 3.5 ppm fast; all its times are corrected for it\n"
    )
    hosts["clock"][1].update(drift_ppm=12.25)
    assert "that of rank 1 drifts most, 12.2 ppm slow;" in shown(hosts)
    hosts["clock"][1].update(drift_ppm=0.04)
    assert "drifts" not in shown(hosts)
    assert "    waits and transfers across hosts within 80.0 us\n" in shown(hosts)
    hosts["clock"][1].update(bound_ns=None)
    assert "across hosts within" not in shown(hosts)


def test_markup_and_terminal_commands_in_names_are_only_characters() -> None:
    name = "[red]x[/red]\x1b[31m\n"
    hostile = document()
    hostile["run"]["id"] = name
    hostile["verdict"][0].update(kind=name, evidence=name, advice=name)
    assert hostile["comm"] is not None
    hostile["comm"][0].update(axis=name, op="send")
    hostile["recorder"]["problems"] = [name]
    held: OpenRecord = {"what": name, "axis": name, "step": None, "duration_ns": 1}
    hostile["faults"] = [no_end(0, held), fault("event", what=name, evidence=name)]
    written = shown(hostile, width=200)
    assert written.count("[red]x[/red]\\x1b[31m\\n") == 10
    assert "\x1b" not in written


def test_on_a_terminal_a_bar_has_the_colour_of_its_term() -> None:
    written = shown(document(), terminal=True)
    assert "\x1b[38;2;0;158;115m███" in written  # forward, #009E73
    assert "\x1b[38;2;0;114;178m███" in written  # bubble.schedule, #0072B2


def test_an_output_that_cannot_carry_blocks_gets_ascii_bars() -> None:
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    foreign = document()
    foreign["run"]["id"] = "Übung"
    render_document(foreign, Console(file=file, width=80))
    file.seek(0)
    written = file.read()
    assert written.startswith("?bung\n2 ranks")
    assert "    backward               40.0 %  40.00 ms ####################################\n" in written


def test_among_many_ranks_those_the_others_waited_for_are_shown() -> None:
    large = document()
    assert large["ledger"] is not None
    row = large["ledger"]["ranks"][0]
    large["ledger"]["ranks"] = [{**row, "rank": rank} for rank in range(64)]
    large["stragglers"] = {
        "named": [{"rank": 40, "confidence": "high", "caused_ratio": 0.1, "excess_ratio": 0.1}],
        "ranks": [
            {"rank": rank, "compute_ns": 1, "own_wait_ns": 0, "caused_wait_ns": 30 * MS if rank == 40 else 0}
            for rank in range(64)
        ],
    }
    section = shown(large).partition("RANKS")[2].partition("\n\n")[0].splitlines()
    assert section[0] == "  16 of 64 ranks, those the others waited for most; means of a step"
    assert [int(line.split()[0]) for line in section[2:]] == [*range(15), 40]
    assert section[-1].endswith("10.00  slowest")


def test_transfer_that_may_be_wait_is_admitted() -> None:
    unsplit = document()
    assert unsplit["ledger"] is not None
    unsplit["ledger"]["unsplit"] = [
        {"axis": "fsdp", "reason": "records_missing", "ns": 6 * MS},
        {"axis": "pp", "reason": "not_replayed", "ns": 12 * MS},
    ]
    assert (
        "    1.00 ms a step of transfer on fsdp may be wait: records of their peers are missing\n"
        "    2.00 ms a step of transfer on pp may be wait: some stage has no actions recorded in these steps\n"
    ) in shown(unsplit, width=100)


def test_evaluation_stands_beside_the_steps() -> None:
    evaluated = document()
    assert evaluated["ledger"] is not None
    evaluated["ledger"].update(evaluation_ns=2 * 12_300 * MS, evaluation_ratio=0.045)
    assert "    evaluation: 12.3 s beside the steps (4.5 % of the run)\n" in shown(evaluated)
