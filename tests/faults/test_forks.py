"""Calls of the API in a forked child have no effect: the parent's names stay the parent's."""

import os
from pathlib import Path

import traincope
from tests.faults.victims.victims import Victims
from traincope.events import Kind
from traincope.store import read_run


def say_something_in_a_child(out: str) -> int:
    """The child calls first, because the second of two equal names in the file wins; with and without the run
    object.
    """
    with traincope.run(out) as run:
        run.step()
        child = os.fork()
        if child == 0:
            run.log(of_the_child=0.5)
            run.describe(of_the_child=1)
            run.step()
            traincope.log(of_the_child=0.5)
            traincope.event("of_the_child", of_the_child=1)
            with traincope.span("of_the_child"):
                os._exit(3)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        run.log(of_the_parent=2.0)
        run.step()
    return code


def test_a_forked_child_writes_nothing_into_its_parents_records(victims: Victims, tmp_path: Path) -> None:
    ended = victims.train(say_something_in_a_child, tmp_path / "run")
    assert (ended.code, ended.result) == (0, 3)
    (rank,) = read_run(tmp_path / "run").ranks
    main = rank.thread("main")
    logged = [rank.name(int(number)) for number in main["name"][main["kind"] == Kind.SCALAR]]
    assert logged == ["of_the_parent"]
    assert not [
        path for path in (tmp_path / "run").rglob("*") if path.is_file() and b"of_the_child" in path.read_bytes()
    ]
