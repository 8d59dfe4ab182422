"""The wrapper of torchrun that writes the launcher's notes."""

import signal

import pytest
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torch.distributed.launcher import api

from traincope.cli.launch.torchrun_child import AGENT, _failed


def test_torchrun_still_has_the_names_that_notes_depend_on() -> None:
    assert getattr(api, AGENT) is LocalElasticAgent
    assert callable(LocalElasticAgent._monitor_workers)


def failure(rank: int, exit_code: int, *, at: int) -> ProcessFailure:
    failure = ProcessFailure(local_rank=rank, pid=1, exitcode=exit_code, error_file="<none>")
    failure.timestamp = at
    return failure


@pytest.mark.parametrize(
    ("exit_codes", "culprit"),
    [
        ((1, -signal.SIGKILL), 1),
        ((-signal.SIGTERM, 1), 0),
        ((-signal.SIGABRT, -signal.SIGSEGV), 1),
        ((3, 1), 0),
    ],
    ids=["killed before failed", "noticed first", "crashed before aborted", "failed first"],
)
def test_the_culprit_is_noted_first(exit_codes: tuple[int, int], culprit: int) -> None:
    """Both within one second, rank 0 noticed first."""
    failures = {rank: failure(rank, code, at=7) for rank, code in enumerate(exit_codes)}
    notes = _failed(failures, attempt=2)
    assert [note.rank for note in notes if note.first] == [culprit]
    assert {(note.attempt, note.at_wall_ns) for note in notes} == {(2, 7_000_000_000)}
