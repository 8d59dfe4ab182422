"""The cases of the score of post-training: complete, with truths that can be graded, and what is graded of a report."""

import re
from typing import Any

from evaluation.score.reports.grading import RIGHT, WRONG, grade
from evaluation.score.rl.cases import cases
from evaluation.score.rl.running import said

CASES = {case.name: case for case in cases()}


def test_there_are_bottlenecks_of_all_forms_and_ten_healthy_loops() -> None:
    assert sum(case.healthy for case in CASES.values()) == 10
    assert len(CASES) == 32
    assert {len(case.jobs) for case in CASES.values()} == {1, 2, 3}
    for case in CASES.values():
        assert case.truth.program.is_file()
        assert case.of in ("", *case.jobs)
        assert case.truth.words or case.healthy
        assert re.compile(case.truth.words)
        assert re.compile(case.truth.forbid_words)


def test_each_job_has_its_role_and_replica_groups_their_numbers() -> None:
    assert CASES["balanced"].environment_of("").keys() == {"FAULT"}
    environment = CASES["late_replica_group"].environment_of("replica-1")
    assert (environment["REPLICA"], environment["REPLICAS"], environment["ROLE"]) == ("1", "2", "replica-1")
    assert "REPLICA" not in CASES["starved_trainer"].environment_of("actor")


def test_of_several_jobs_the_sentences_are_graded_or_one_verdict() -> None:
    late: dict[str, Any] = {"kind": "straggler", "ranks": [1], "confidence": "high", "evidence": "reward", "advice": ""}
    document = {"sentences": ["replica-1 is late: the others wait."], "reports": [{"verdict": []}, {"verdict": [late]}]}
    both, of_one = CASES["late_replica_group"], CASES["late_rank_of_a_late_group"]
    assert grade(said(both, document), both.truth) == RIGHT
    assert grade(said(of_one, document), of_one.truth) == RIGHT
    wrong = {"sentences": ["replica-0 is late: the others wait."], "reports": []}
    assert grade(said(both, wrong), both.truth) == WRONG
