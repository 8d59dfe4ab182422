"""Names of pipeline actions as torch writes them, and what counts as one."""

import numpy as np
import pytest
from torch.distributed.pipelining.schedules import _Action, _get_profiler_function_name

from tests.timeline.device.imported import Program
from tests.timeline.traces import trace
from traincope.timeline.device.actions import ANNOTATION, OVERLAPPED, device_actions
from traincope.timeline.device.phases import phases
from traincope.timeline.device.works import works

OVERLAP = "(1F2;0B1)OVERLAP_F_B"


@pytest.mark.parametrize("action", ["0F0", "1B3", "12I7", "2W0"])
def test_torch_annotates_an_action_by_its_notation(action: str) -> None:
    match = ANNOTATION.fullmatch(_name(action))
    assert match is not None
    assert "".join(match.groups()) == action


@pytest.mark.parametrize("action", ["0UNSHARD", "1SEND_F0", "0RECV_B1", "1REDUCE_GRAD"])
def test_other_actions_do_not_compute(action: str) -> None:
    assert ANNOTATION.fullmatch(_name(action)) is None


def test_torch_annotates_an_overlapped_pair_once() -> None:
    assert OVERLAPPED.fullmatch(_name(OVERLAP))


def _name(action: str) -> str:
    parsed = _Action.from_str(action)
    assert parsed is not None
    return _get_profiler_function_name(parsed)


def found(*names: str) -> list[tuple[str, int, int, int, int]]:
    """Actions of a program in which each annotation of 10 ns launches kernels of 5 and 8 ns."""
    program = Program()
    for at, name in enumerate(names):
        program.range(name, 10 * at, 10 * at + 10, category="user_annotation")
        program.kernel(10 * at + 1, 20 * at, 20 * at + 5, thread="2")
        program.kernel(10 * at + 3, 20 * at + 6, 20 * at + 14)
    one_trace = trace(*program.rows)
    kernels = works(one_trace, "0")
    actions = device_actions(one_trace, kernels, phase=phases(one_trace, kernels))
    columns = (actions.stage, actions.microbatch, actions.start_ns, actions.end_ns)
    return list(zip(actions.kind, *map(np.ndarray.tolist, columns), strict=True))


def test_an_action_is_the_compute_launched_on_any_thread_within() -> None:
    assert found("PP:1F0", "PP:1SEND_F0", "PP:1B0") == [("F", 1, 0, 0, 14), ("B", 1, 0, 40, 54)]


def test_with_overlapped_actions_there_are_none() -> None:
    assert found("PP:1F0", f"PP:{OVERLAP}") == []
