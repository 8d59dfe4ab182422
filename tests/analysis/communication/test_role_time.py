"""GPU time by role: an exact sum of work and idle time, with what idle time waits for."""

from dataclasses import replace
from typing import Any

from tests.analysis.communication.test_workflow import run, waiting
from tests.timeline.build import Row, phase, step
from traincope.analysis.communication.role_time import RoleTime
from traincope.analysis.communication.workflow import workflow
from traincope.events import Phase


def parts(role: RoleTime) -> dict[Any, int]:
    assert sum(part.ns for part in role.parts) == role.total_ns
    return {
        part.what if part.awaited is None else (part.what, part.awaited, part.meanwhile): part.ns for part in role.parts
    }


def trainer() -> list[Row]:
    """Three steps of 100: 40 wait for the actor, 50 work, 10 without a record; then 20 outside of steps, 5 of which
    collect garbage.
    """
    rows = []
    for number in range(3):
        at = 100 * number
        rows += [
            step(number, at, at + 100),
            waiting("actor", at, at + 40, at=number),
            phase(Phase.FORWARD, at + 40, at + 90, at=number),
        ]
    return [*rows, phase(Phase.GC, 315, 320)]


def actor() -> list[Row]:
    """It begins at 10. Of each 100: 30 generate, 10 synchronise weights, and the rest waits for the trainer."""
    rows = []
    for number in range(3):
        at = 100 * number
        begin = 10 if number == 0 else at
        rows += [
            step(number, begin, at + 100),
            phase(Phase.GENERATE, begin, at + 30, at=number),
            phase(Phase.WEIGHT_SYNC, at + 30, at + 40, at=number),
            waiting("trainer", at + 40, at + 100, at=number),
        ]
    return rows


def test_the_parts_of_each_role_sum_to_the_elapsed_time_of_its_ranks() -> None:
    together = workflow([run("trainer", trainer(), trainer()), run("actor", actor())])
    assert together.elapsed_ns == 320
    of_trainer, of_actor = together.roles
    assert (of_trainer.role, of_trainer.num_ranks, of_trainer.total_ns) == ("trainer", 2, 640)
    # Of the first wait, the actor has a record of the last 30: 20 generate and 10 synchronise.
    assert parts(of_trainer) == {
        "train": 2 * 150,
        "unattributed": 2 * 30,
        ("job_wait", "actor", "generate"): 2 * 80,
        ("job_wait", "actor", "weight_sync"): 2 * 30,
        ("job_wait", "actor", "nothing recorded"): 2 * 10,
        "outside of steps": 2 * 15,
        "gc": 2 * 5,
    }
    assert parts(of_actor) == {
        "generate": 20 + 30 + 30,
        "weight_sync": 30,
        ("job_wait", "trainer", "train"): 150,
        ("job_wait", "trainer", "unattributed"): 30,
        "not started": 10,
        "ended": 20,
    }
    assert of_actor.idle_ratio == (150 + 30 + 10 + 20) / 320


def test_a_relaunched_job_is_one_role_and_jobs_at_once_are_several() -> None:
    later = [replace(row, start_ns=row.start_ns + 500, end_ns=row.end_ns + 500) for row in actor()]
    relaunched = workflow([run("actor", actor()), run("actor", later)])
    (one,) = relaunched.roles
    assert (one.role, one.total_ns, parts(one)["not started"]) == ("actor", 790, 210)
    assert len(workflow([run("actor", actor()), run("actor", actor())]).roles) == 2


def test_a_wait_inside_a_part_is_idle_time() -> None:
    """Of a part of 100, the first 60 wait for the actor, which has no records."""
    rows = []
    for number in range(2):
        at = 100 * number
        rows += [
            step(number, at, at + 100),
            phase(Phase.GENERATE, at, at + 100, at=number),
            waiting("actor", at, at + 60, at=number),
        ]
    (role,) = workflow([run("trainer", rows)]).roles
    assert parts(role) == {"generate": 80, ("job_wait", "actor", "nothing recorded"): 120}


def test_roles_with_other_numbers_of_ranks_divide_a_wait_without_a_rest() -> None:
    """The trainer's rank waits 41 for the actor, two of whose ranks generate, and one trains: 27.3 and 13.7."""
    waits = [step(0, 0, 100), waiting("actor", 0, 41, at=0), phase(Phase.FORWARD, 41, 100, at=0)]
    generate = [step(0, 0, 100), phase(Phase.GENERATE, 0, 100, at=0)]
    train = [step(0, 0, 100), phase(Phase.FORWARD, 0, 100, at=0)]
    of_trainer, of_actor = workflow([run("trainer", waits), run("actor", generate, generate, train)]).roles
    assert parts(of_trainer) == {
        "train": 59,
        ("job_wait", "actor", "generate"): 28,
        ("job_wait", "actor", "train"): 13,
    }
    assert parts(of_actor) == {"generate": 200, "train": 100}


def test_a_role_may_record_nothing_but_steps() -> None:
    (role,) = workflow([run("actor", [step(0, 0, 100), step(1, 100, 200)])]).roles
    assert parts(role) == {"unattributed": 200}


def test_a_run_that_names_no_workflow_and_waits_for_none_has_no_role() -> None:
    alone = [step(0, 0, 100), phase(Phase.FORWARD, 0, 60)]
    assert workflow([run(None, alone), run(None, alone)]).roles == ()
