import json
from dataclasses import replace

import pytest

from tests.report.example import END_NS, MS, analysis, document, rank_timeline, timeline, without_steps
from traincope.analysis import MemoryUse
from traincope.analysis.context import Context
from traincope.analysis.faults.endings import endings
from traincope.report.document.document import to_document, to_json
from traincope.report.schema import Document
from traincope.timeline import OpenRecord

TOP_LEVEL = [
    *("schema_version", "run", "verdict", "ledger", "causes", "utilization", "energy"),
    *("rollouts", "comm", "bubble", "stragglers"),
    *("slowdown", "host_shortages", "faults", "hangs"),
    *(
        "goodput",
        "reliability",
        "background_saves",
        "sampled_stacks",
        "memory",
        "memory_split",
        "grown_tensors",
        "out_of_memory",
        "memory_snapshots",
        "kernels",
        "critical_path",
        "data_order",
        "state_checks",
        "gpu_partition",
        "clock",
        "recorder",
    ),
]


def test_the_top_level_keys_are_frozen_in_name_and_order() -> None:
    assert list(Document.__annotations__) == TOP_LEVEL
    assert list(json.loads(to_json(document()))) == TOP_LEVEL


def test_an_analysis_becomes_this_document_without_the_warm_up_step() -> None:
    assert to_document(analysis()) == document()


def test_the_shares_of_the_waterfall_sum_to_one() -> None:
    ledger = to_document(analysis())["ledger"]
    assert ledger is not None
    assert sum(share for share in ledger["waterfall"].values() if share is not None) == pytest.approx(1.0)


def test_a_run_without_steps_has_every_key_and_null_where_steps_are_needed() -> None:
    empty = to_document(without_steps())
    assert list(empty) == TOP_LEVEL
    assert [key for key in TOP_LEVEL if empty[key] is None] == [  # type: ignore[literal-required]
        *("ledger", "rollouts", "comm", "bubble", "stragglers", "slowdown"),
        *("goodput", "reliability", "background_saves", "memory", "memory_split", "grown_tensors", "out_of_memory"),
        *("memory_snapshots", "kernels", "critical_path", "data_order", "state_checks", "gpu_partition"),
    ]
    assert empty["run"]["steps"] == 0
    assert empty["run"]["step_ns"] is None


def test_a_rank_without_a_known_end_has_its_open_events() -> None:
    """Rank 1 stops 500 ms before rank 0 does, 3.2 s into an all-gather."""
    last_ns = END_NS - 500 * MS
    held = OpenRecord(what="all_gather", axis="fsdp", step=17, start_ns=last_ns - 3_200 * MS)
    killed = replace(rank_timeline(1), ending=None, open_records=(held,), last_ns=last_ns, open_step=17)
    whole = replace(timeline(), ranks=(rank_timeline(0), killed))
    faulty = replace(analysis(), context=Context(whole), faults=endings(whole))
    assert to_document(faulty)["faults"] == [
        {
            "kind": "no_end",
            "page": "docs/findings/ends.md#the-end-of-a-rank-is-unknown",
            "mark": False,
            "at_ns": last_ns,
            "ranks": [1],
            "step": 17,
            "attempt": None,
            "training_step": None,
            "timed": True,
            "what": "no end is recorded; last heard of in all_gather on fsdp",
            "evidence": "",
            "confidence": "unknown",
            "lasted_ns": None,
            "follows": False,
            "open_records": [{"what": "all_gather", "axis": "fsdp", "step": 17, "duration_ns": 3_200 * MS}],
            "traceback": [],
        }
    ]


def test_memory_has_one_entry_per_rank_and_measure() -> None:
    use = MemoryUse(
        rank=1,
        measure="resident",
        last_bytes=300,
        peak_bytes=400,
        phases={"forward": 250},
        growth_bytes_per_step=1.5,
        leak=False,
    )
    assert to_document(replace(analysis(), memory=(use,)))["memory"] == [
        {
            "rank": 1,
            "measure": "resident",
            "last_bytes": 300,
            "peak_bytes": 400,
            "phases": {"forward": 250},
            "growth_bytes_per_step": 1.5,
            "leak": False,
            "exhausted_at_step": None,
            "exhausted_in_ns": None,
        }
    ]


def test_probes_are_grouped_by_state_and_losses_are_summed() -> None:
    whole = timeline()
    first, second = whole.run.ranks
    info = replace(second.info, probes={"c10d": "no torch"}, recorder={"dropped": 5, "names_refused": 7})
    first = replace(first, info=replace(first.info, recorder={"names_refused": 4, "details_refused": 0}))
    run = replace(whole.run, ranks=(first, replace(second, info=info, problems=("rank 1",))), problems=("run",))
    recorder = to_document(replace(analysis(), context=Context(replace(whole, run=run))))["recorder"]
    assert recorder["dropped"] == 5
    assert recorder["lost"] == {
        "names_refused": 11,
        "details_refused": 0,
        **dict.fromkeys(("lost_lines", "values_left_out", "stalls_unmeasured", "collectives_forgotten")),
    }
    assert recorder["problems"] == ["run", "rank 1"]
    assert recorder["probes"] == [
        {"name": "c10d", "state": "on", "ranks": [0]},
        {"name": "c10d", "state": "no torch", "ranks": [1]},
    ]


def test_the_text_is_the_same_for_the_same_document() -> None:
    assert to_json(document()) == to_json(document())
    assert to_json(document()).endswith("\n}\n")


def test_times_stay_integers_and_absent_evidence_is_null() -> None:
    ledger = json.loads(to_json(document()))["ledger"]
    assert ledger["terms"]["forward"] == 165 * MS
    assert isinstance(ledger["terms"]["forward"], int)
    assert ledger["terms"]["launch_gap"] is None
    assert ledger["waterfall"]["launch_gap"] is None


def test_a_hostile_name_is_harmless_and_survives() -> None:
    hostile = document()
    hostile["run"]["id"] = "\x1b[31m[red]x[/red]\u202e"
    assert "\x1b" not in to_json(hostile)
    assert to_json(hostile).isascii()
    assert json.loads(to_json(hostile))["run"]["id"] == "\x1b[31m[red]x[/red]\u202e"


def test_nan_is_refused() -> None:
    broken = document()
    broken["verdict"][0]["estimated_gain_ratio"] = float("nan")
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_json(broken)
