"""Waits between jobs that work together: their ledger term, its division by role, and what the awaited job did."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.timeline.build import Row, phase, rank, step, timeline
from traincope.analysis import Analysis, analyze, term_causes
from traincope.analysis.communication.job_waits import job_waits
from traincope.analysis.communication.workflow import JobWait, Workflow, workflow
from traincope.analysis.verdict.findings import FindingKind
from traincope.cli.main import main
from traincope.errors import UsageError
from traincope.events import Kind, Phase
from traincope.report.text.workflow import sentences

STEPS = 4


def waiting(role: str, start_ns: int, end_ns: int, *, at: int) -> Row:
    return replace(phase(Phase.JOB_WAIT, start_ns, end_ns, at=at), name=role)


def steps(*parts: tuple[str, int]) -> list[Row]:
    """Equal steps of these parts in order, each of (role or `forward`, ns)."""
    rows, now = [], 0
    for number in range(STEPS):
        inside, began = [], now
        for name, ns in parts:
            of = phase(Phase.FORWARD, now, now + ns, at=number) if name == "forward" else None
            inside.append(of or waiting(name, now, now + ns, at=number))
            now += ns
        rows += [step(number, began, now), *inside]
    return rows


def moved(row: Row, by_ns: int) -> Row:
    return replace(row, start_ns=row.start_ns + by_ns, end_ns=row.end_ns + by_ns)


def run(role: str | None, *ranks: Sequence[Row], name: str | None = "rlhf") -> Analysis:
    """`role` None: it has declared nothing."""
    built = timeline(*(rank(number, *rows) for number, rows in enumerate(ranks)))
    settings: dict[str, Any] = {} if role is None else {"role": role} | ({"workflow": name} if name else {})
    info = replace(built.run.info, settings=settings)
    declared = replace(built, run=replace(built.run, info=info))
    return analyze(declared)


def test_the_warm_up_step_enters_no_share() -> None:
    """In step 0 the actor works while the trainer waits. In all others both wait for each other, 40 of 100 ns."""

    def rows(first: tuple[str, int], other: str) -> list[Row]:
        rows, now = [], 0
        for number, parts in enumerate([(first,), *[((other, 40), ("forward", 60))] * (STEPS - 1)]):
            began = now
            for name, ns in parts:
                is_work = name == "forward"
                of = (
                    phase(Phase.FORWARD, now, now + ns, at=number)
                    if is_work
                    else waiting(name, now, now + ns, at=number)
                )
                rows.append(of)
                now += ns
            rows.append(step(number, began, now))
        return sorted(rows, key=lambda row: (row.start_ns, row.kind != Kind.STEP))

    trainer, actor = rows(("actor", 1000), "actor"), rows(("forward", 1000), "trainer")
    (found, _) = workflow([run("trainer", trainer), run("actor", actor)]).waits
    assert (found.ratio, found.worked_ratio, found.waited_ratio) == (0.4, 0.0, 1.0)


def test_the_term_is_divided_by_role_and_stays_in_the_one_sum() -> None:
    """Each step: 30 for the actor, of which the first rank collects garbage for 6; 10 for the reward model; 60 work.

    Without the garbage collection, the term is 34; it is divided as 30 to 10.
    """
    rows = steps(("actor", 30), ("reward", 10), ("forward", 60))
    with_gc = [*rows, *(phase(Phase.GC, 100 * at + 4, 100 * at + 10, at=at) for at in range(STEPS))]
    both = run("trainer", sorted(with_gc, key=lambda row: (row.start_ns, -row.end_ns)), rows)
    for ledger in both.ledger.ranks:
        assert (sum(ns for ns in ledger.terms.values() if ns is not None) == ledger.wall_ns).all()
    counted = STEPS - 1
    assert both.ledger.total("job_wait") == counted * (34 + 40)
    assert both.ledger.total("gc") == counted * 6
    assert job_waits(both.timeline, both.ledger) == {
        "actor": counted * 74 * 60 // 80,
        "reward": counted * 74 * 20 // 80,
    }


def test_a_run_without_such_waits_does_not_list_the_term() -> None:
    alone = run(None, steps(("forward", 60)))
    assert "job_wait" not in alone.ledger.order
    assert job_waits(alone.timeline, alone.ledger) == {}


def test_the_awaited_job_worked_or_waited_itself() -> None:
    """In 100 of each step, the trainer waits for the first 40; then the actor works for 30 and waits for 10."""
    trainer = run("trainer", steps(("actor", 40), ("forward", 60)))
    actor = run("actor", steps(("forward", 30), ("trainer", 70)))
    together = workflow([trainer, actor])
    assert together.name == "rlhf"
    assert [(job.role, job.num_ranks, job.wait_ratio) for job in together.jobs] == [
        ("trainer", 1, 0.4),
        ("actor", 1, 0.7),
    ]
    counted = STEPS - 1
    assert together.waits == (
        JobWait(
            waiting="actor",
            awaited="trainer",
            ns=70 * counted,
            ratio=0.7,
            recorded_ratio=1.0,
            worked_ratio=60 / 70,
            waited_ratio=10 / 70,
        ),
        JobWait(
            waiting="trainer",
            awaited="actor",
            ns=40 * counted,
            ratio=0.4,
            recorded_ratio=1.0,
            worked_ratio=0.75,
            waited_ratio=0.25,
        ),
    )
    assert not any(job.alone for job in together.jobs)


def test_a_wait_too_short_to_matter_has_no_advice() -> None:
    together = workflow([run("trainer", steps(("actor", 4), ("forward", 996))), run("actor", steps(("forward", 1000)))])
    assert list(sentences(together)) == ["trainer waits for actor 0.4 % of its step time."]


def test_what_a_job_without_records_did_is_unknown() -> None:
    (wait,) = workflow([run("trainer", steps(("actor", 40), ("forward", 60)))]).waits
    assert (wait.recorded_ratio, wait.worked_ratio, wait.waited_ratio) == (0.0, None, None)


def test_a_wait_for_a_job_that_was_relaunched_is_compared_with_all_its_runs() -> None:
    """The trainer waits in [100 k, 100 k + 40). The actor works in [0, 100) and, after a relaunch, in [200, 400). A
    third run of it is of an hour later. So of the counted waits, it has no record of the first, [100, 140).
    """
    trainer = run("trainer", steps(("actor", 40), ("forward", 60)))
    work = steps(("forward", 100))
    first, second = run("actor", work[:2]), run("actor", work[4:])
    later = run("actor", [moved(row, 3_600_000_000_000) for row in work])
    together = workflow([trainer, first, second, later])
    (wait,) = together.waits
    assert (wait.awaited, wait.ratio, wait.waited_ratio) == ("actor", 0.4, 0.0)
    assert wait.recorded_ratio == wait.worked_ratio == 2 / 3
    assert [job.alone for job in together.jobs] == [False, False, False, True]
    lines = list(sentences(together))
    assert lines[0] == (
        "trainer waits for actor 40.0 % of its step time: actor then works 66.7 % and waits for other jobs 0.0 %, and "
        "has no records of 33.3 %. Its work takes the time: give it more GPUs, or let trainer work ahead."
    )
    assert lines[1:] == [f"{together.jobs[3].role} ran while no other of these jobs did."]


@pytest.mark.parametrize(
    ("recorded", "worked", "waited", "advice"),
    [
        (1.0, 0.7, 0.2, "Its work takes the time: give it more GPUs, or let trainer work ahead"),
        (1.0, 0.507, 0.492, "None of these takes most of the wait"),
        (1.0, 0.2, 0.7, "Both wait: look at which job actor waits for, and at what passes between the jobs"),
        (1.0, 0.2, 0.1, "Look at what actor does outside of its steps"),
        (0.1, 0.1, 0.0, "Look at whether actor ran then"),
    ],
)
def test_the_advice_follows_the_largest_part_of_a_wait(
    recorded: float, worked: float, waited: float, advice: str
) -> None:
    wait = JobWait(
        waiting="trainer",
        awaited="actor",
        ns=1,
        ratio=0.5,
        recorded_ratio=recorded,
        worked_ratio=worked,
        waited_ratio=waited,
    )
    (sentence,) = sentences(Workflow(name=None, jobs=(), waits=(wait,)))
    assert sentence.partition(". ")[2] == f"{advice}."


def test_runs_of_different_workflows_are_not_compared() -> None:
    one, other = (run("trainer", steps(("forward", 60)), name=name) for name in ("rlhf", "rlaif"))
    with pytest.raises(UsageError, match="different workflows: rlaif, rlhf"):
        workflow([one, other])


def test_equal_roles_are_told_apart() -> None:
    roles = [job.role for job in workflow([run("actor", steps(("forward", 60)))] * 2).jobs]
    assert [role.partition(" (")[0] for role in roles] == ["actor", "actor"]
    assert roles[0] != "actor"


def test_the_verdict_and_the_causes_name_the_awaited_job() -> None:
    trainer = run("trainer", steps(("actor", 30), ("reward", 10), ("forward", 60)))
    analysis = analyze(trainer.timeline)
    (finding,) = (finding for finding in analysis.verdict if finding.kind is FindingKind.JOB_WAIT)
    assert finding.evidence == (
        "training waits 40.0 % of step time for other jobs: actor (75.0 % of it), reward (25.0 % of it)"
    )
    (causes,) = (causes for causes in term_causes(analysis) if causes.terms == ("job_wait",))
    assert [(cause.subject, cause.ns) for cause in causes.causes] == [("actor", 90), ("reward", 30)]


JOB = """
import sys, time
from pathlib import Path
import torch
import traincope
role, other, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
def wait(step):
    with traincope.wait_for(other):
        while not (folder / f"{other} {step}").exists():
            time.sleep(0.01)
with traincope.run(folder / role, budget=None, agent=False) as run:
    for step in range(5):
        if role == "trainer":
            wait(step)
        time.sleep(0.1)
        (folder / f"{role} {step}").touch()
        if role == "actor":
            wait(step)
        run.step()
"""


def test_two_real_jobs_wait_for_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They work in turns, so each waits while the other works. The first to start waits for the other's start too."""
    jobs = [
        subprocess.Popen(
            [sys.executable, "-c", JOB, role, other, str(tmp_path)],
            env=os.environ | {"TRAINCOPE_WORKFLOW": "in turns", "TRAINCOPE_ROLE": role},
        )
        for role, other in (("trainer", "actor"), ("actor", "trainer"))
    ]
    assert [job.wait(250) for job in jobs] == [0, 0]
    runs = [str(tmp_path / role) for role in ("trainer", "actor")]
    with pytest.raises(SystemExit, match="0"):
        main(["report", *runs, "--format", "json"])
    document = json.loads(capsys.readouterr().out)
    assert document["name"] == "in turns"
    assert [report["run"]["steps"] for report in document["reports"]] == [3, 3]
    assert [job["num_steps"] for job in document["jobs"]] == [3, 3]
    assert {(wait["waiting"], wait["awaited"]) for wait in document["waits"]} == {
        ("trainer", "actor"),
        ("actor", "trainer"),
    }
    for wait in document["waits"]:
        assert wait["worked_ratio"] > wait["recorded_ratio"] / 2 > wait["waited_ratio"]
    with pytest.raises(SystemExit, match="0"):
        main(["report", *runs, "--brief"])
    printed = capsys.readouterr().out
    assert printed.startswith("JOBS THAT WORK TOGETHER  in turns\n")
    assert "\nJOB actor\n" in printed
    another = tmp_path / "another"
    shutil.copytree(tmp_path / "actor", another)
    manifest = json.loads((another / "run.json").read_text())
    (another / "run.json").write_text(json.dumps({**manifest, "settings": {"workflow": "of others"}}))
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "run.json").write_text("{")
    with pytest.raises(SystemExit, match="0"):
        main(["report", str(tmp_path), "--workflow", "in turns", "--format", "json"])
    by_name = json.loads(capsys.readouterr().out)
    assert (by_name["name"], len(by_name["reports"])) == ("in turns", 2)
    by_role = {(wait["waiting"], wait["awaited"]): wait for wait in by_name["waits"]}
    assert by_role == {(wait["waiting"], wait["awaited"]): wait for wait in document["waits"]}
    with pytest.raises(SystemExit, match="2"):
        main(["report", str(tmp_path), "--workflow", "in turn"])
    assert "has the workflow 'in turn'" in " ".join(capsys.readouterr().err.split())
