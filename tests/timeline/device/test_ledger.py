"""The ledger of hand-made traces, whose terms are computed by hand."""

from dataclasses import replace

import pytest

from tests.timeline.device.imported import Program, analysis_of, ledger_of, run_of
from tests.timeline.traces import Row, kernel, trace
from traincope.store.side_tables.traces import TraceCollective
from traincope.timeline import LedgerClock


def test_a_gpu_that_is_behind_the_host_ends_its_step_when_its_work_is_done() -> None:
    program = Program()
    program.step(3, 0, 100)
    program.step(4, 100, 150)
    program.range("## forward ##", 0, 20)
    program.kernel(10, 12, 130)
    program.range("## forward ##", 100, 120)
    program.kernel(110, 130, 170)
    # Step 3 begins with the host, and ends when the kernel launched before 100 is done.
    assert ledger_of(trace(*program.rows)) == {3: {"launch_gap": 12, "forward": 118}, 4: {"forward": 40}}


def test_the_ledger_says_that_the_gpu_measured_it_and_no_step_is_the_warm_up() -> None:
    program = Program()
    for number in range(3):
        program.step(number, 10 * number, 10 * number + 10)
        program.kernel(10 * number, 10 * number + 2, 10 * number + 8)
    ledger = analysis_of(trace(*program.rows)).ledger
    assert ledger.clock is LedgerClock.DEVICE
    assert ledger.ranks[0].num_counted == 3
    assert ledger.excluded_steps == ()


def test_compute_owns_before_communication_before_copies() -> None:
    program = Program()
    program.step(0, 0, 100)
    program.rows.append(_copy(0, 60))
    program.kernel(0, 10, 40, name="ncclDevKernel_AllReduce_Sum_f32", stream="20")
    program.kernel(1, 20, 30)
    program.kernel(2, 90, 100)
    assert ledger_of(trace(*program.rows)) == {
        0: {
            "exposed_memory": 10 + 20,
            "exposed_transfer[unknown]": 10 + 10,
            "other_compute": 10 + 10,
            "kernel_wait": 30,
        }
    }


def test_of_two_compute_kernels_the_one_that_began_last_owns_the_time() -> None:
    program = Program()
    program.step(0, 0, 40)
    program.range("## forward ##", 0, 5)
    program.kernel(0, 0, 40)
    program.range("Optimizer.step#Adam.step", 5, 9, category="user_annotation")
    program.kernel(6, 10, 20, stream="8")
    assert ledger_of(trace(*program.rows)) == {0: {"forward": 30, "optimizer": 10}}


PHASES = (
    ("Optimizer.step#Adam.step", "optimizer"),
    ("Optimizer.zero_grad#SGD.zero_grad", "optimizer"),
    ("## zero_grad ##", "optimizer"),
    ("autograd::engine::evaluate_function: MmBackward0", "backward"),
    ("## backward ##", "backward"),
    ("DistributedDataParallel.forward", "forward"),
    ("## RecMetricModule:update ##", "other_compute"),
)


@pytest.mark.parametrize(("name", "term"), PHASES)
def test_the_range_around_the_launch_gives_the_phase(name: str, term: str) -> None:
    program = Program()
    program.step(0, 0, 10)
    program.range(name, 0, 5)
    program.kernel(1, 0, 10)
    assert ledger_of(trace(*program.rows)) == {0: {term: 10}}


def test_a_range_of_another_thread_gives_no_phase() -> None:
    program = Program()
    program.step(0, 0, 10)
    program.range("## forward ##", 0, 10, thread="2")
    program.kernel(1, 0, 10)
    assert ledger_of(trace(*program.rows)) == {0: {"other_compute": 10}}


def test_operators_that_autograd_numbers_are_forward_outside_and_recomputation_inside_its_engine() -> None:
    program = Program()
    program.step(0, 0, 60)
    program.operator("aten::mm", 0, 5, sequence=1)
    program.kernel(1, 1, 10)
    program.range("autograd::engine::evaluate_function: CheckpointBackward", 10, 40, thread="2")
    program.operator("aten::mm", 11, 20, sequence=2, thread="2")
    program.kernel(12, 13, 25, thread="2")
    program.operator("MmBackward0", 21, 30, sequence=1, forward_thread=1, thread="2")
    program.kernel(22, 25, 60, thread="2")
    assert ledger_of(trace(*program.rows)) == {
        0: {"launch_gap": 1 + 3, "forward": 9, "recompute": 12, "backward": 35},
    }


def test_a_module_that_runs_inside_the_engine_recomputes() -> None:
    program = Program()
    program.step(0, 0, 10)
    program.range("autograd::engine::evaluate_function: CheckpointBackward", 0, 9)
    program.range("FullyShardedDataParallel.forward", 1, 8)
    program.kernel(2, 0, 10)
    assert ledger_of(trace(*program.rows)) == {0: {"recompute": 10}}


def test_idle_time_is_that_of_what_the_launching_thread_did() -> None:
    program = Program()
    program.step(0, 0, 100)
    program.kernel(0, 0, 10)
    program.range("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 5, 30)
    program.range("enumerate(DataLoader)#_Iter.__next__", 60, 70, thread="2")
    program.rows.append(_call("cudaStreamSynchronize", 40, 50))
    program.kernel(80, 85, 100)
    # Until 80 nothing is launched: 20 of data, 10 of a synchronisation, the rest is late launching. Thread 2 launches
    # nothing, so its loader delays nothing.
    assert ledger_of(trace(*program.rows)) == {
        0: {"other_compute": 25, "data_wait": 20, "sync": 10, "launch_gap": 75 - 30},
    }


def test_a_wait_of_the_host_while_the_gpu_works_is_never_booked() -> None:
    program = Program()
    program.step(0, 0, 100)
    program.kernel(0, 0, 95)
    program.range("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 5, 90)
    program.kernel(92, 95, 100)
    assert ledger_of(trace(*program.rows)) == {0: {"other_compute": 100}}


def test_idle_time_after_a_launch_began_is_a_launch_gap_whatever_the_host_does() -> None:
    program = Program()
    program.step(0, 0, 50)
    program.kernel(0, 40, 50)
    program.rows.append(_call("cudaDeviceSynchronize", 5, 50))
    assert ledger_of(trace(*program.rows)) == {0: {"launch_gap": 40, "other_compute": 10}}


@pytest.mark.parametrize(("launched", "term"), [(9, "kernel_wait"), (10, "launch_gap")])
def test_idle_time_is_a_wait_of_the_gpu_if_its_next_work_was_launched_before_it_began(launched: int, term: str) -> None:
    """The call takes 1 ns. The GPU has nothing to do from 10 on, and does not start the launched kernel until 40."""
    program = Program()
    program.step(0, 0, 50)
    program.kernel(0, 0, 10)
    program.kernel(launched, 40, 50)
    program.rows.append(_call("cudaDeviceSynchronize", 11, 50))
    assert ledger_of(trace(*program.rows)) == {0: {"other_compute": 20, term: 30}}


def test_idle_time_before_nothing_is_unattributed() -> None:
    program = Program()
    program.step(0, 0, 50)
    program.kernel(0, 0, 10)
    assert ledger_of(trace(*program.rows)) == {0: {"other_compute": 10, "unattributed": 40}}


def test_evaluation_is_cut_out_of_the_step() -> None:
    program = Program()
    program.step(0, 0, 100)
    program.kernel(0, 0, 20)
    program.range("evaluation", 10, 60)
    program.kernel(30, 35, 50)
    program.kernel(70, 75, 100)
    # The evaluation's range lasts until 60; the kernel launched before it owns its time until 20.
    assert ledger_of(trace(*program.rows)) == {0: {"other_compute": 20 + 25, "launch_gap": 15}}
    (rank,) = analysis_of(trace(*program.rows)).ledger.ranks
    assert rank.wall_ns.tolist() == [100 - 40]


def test_all_kernels_of_a_graph_have_the_launch_of_the_graph() -> None:
    program = Program()
    program.step(0, 0, 30)
    program.range("## forward ##", 0, 5)
    program.kernel(1, 5, 10)
    rows = [*program.rows, *(_kernel(start, start + 5, of=program.rows[-1].correlation) for start in (12, 20, 25))]
    assert ledger_of(trace(*rows)) == {0: {"forward": 20, "launch_gap": 5, "kernel_wait": 2 + 3}}


def test_a_kernel_without_its_launch_has_no_phase_and_no_cause_of_idle_time() -> None:
    program = Program()
    program.step(0, 0, 30)
    program.range("## forward ##", 0, 30)
    assert ledger_of(trace(*program.rows, _kernel(10, 30, of=99))) == {0: {"unattributed": 10, "other_compute": 20}}


def test_without_marks_the_steps_lie_between_those_of_the_optimizer() -> None:
    program = Program()
    for at in (10, 40, 80):
        program.range("Optimizer.step#SGD.step", at, at + 5, category="user_annotation")
        program.kernel(at, at + 1, at + 10)
    analysis = analysis_of(trace(*program.rows))
    # Ends of the optimizer's steps on the GPU: 20, 50, 90.
    assert [(step.number, step.start_ns, step.end_ns) for step in analysis.timeline.ranks[0].steps] == [
        (1, 20, 50),
        (2, 50, 90),
    ]
    assert all(step.guessed for step in analysis.timeline.ranks[0].steps)


def test_a_trace_without_kernels_or_without_steps_gives_no_records() -> None:
    no_steps, no_kernels = Program(), Program()
    no_steps.kernel(0, 0, 10)
    no_kernels.step(0, 0, 10)
    for program in (no_steps, no_kernels):
        assert analysis_of(trace(*program.rows)).ledger.ranks == ()


def _all_reduces(*spans: tuple[int, int], ranks: tuple[int, ...], group: str = "0") -> Program:
    program = Program()
    program.step(0, 0, 100)
    program.kernel(0, 0, 10)
    for start_ns, end_ns in spans:
        program.kernel(1, start_ns, end_ns, name="ncclDevKernel_AllReduce", stream="20")
        stated = TraceCollective(name="allreduce", group=group, description="mesh_dp", ranks=ranks, dtype="Float")
        program.rows[-1] = replace(program.rows[-1], collective=stated)
    program.kernel(2, 99, 100)
    return program


def test_the_shortest_kernel_of_a_collective_is_its_transfer_and_the_rest_is_wait() -> None:
    early, late = _all_reduces((10, 60), (60, 70), ranks=(0, 1)), _all_reduces((40, 60), (60, 80), ranks=(0, 1))
    traces = trace(*early.rows), trace(*late.rows, rank=1)
    assert ledger_of(*traces) == {
        0: {"other_compute": 11, "exposed_wait[dp]": 30, "exposed_transfer[dp]": 20 + 10, "kernel_wait": 29},
    }
    assert ledger_of(*traces, rank=1)[0]["exposed_wait[dp]"] == 10


def test_without_the_trace_of_a_member_all_is_transfer_that_may_be_wait() -> None:
    early, late = _all_reduces((10, 60), ranks=(0, 1, 2)), _all_reduces((40, 60), ranks=(0, 1, 2))
    analysis = analysis_of(trace(*early.rows), trace(*late.rows, rank=1), world_size=3)
    assert {term: analysis.ledger.total(term) for term in ("exposed_wait[dp]", "exposed_transfer[dp]")} == {
        "exposed_wait[dp]": 0,
        "exposed_transfer[dp]": 50 + 20,
    }
    assert sum(analysis.ledger.ambiguous_waits().values()) == 70


def test_collectives_of_unknown_groups_are_never_matched_and_accuse_no_rank() -> None:
    reduces, gathers = Program(), Program()
    for program, name in ((reduces, "AllReduce"), (gathers, "AllGather")):
        program.step(0, 0, 100)
        program.kernel(0, 0, 10)
        program.kernel(1, 10, 60, name=f"ncclDevKernel_{name}_f32", stream="20")
    analysis = analysis_of(trace(*reduces.rows), trace(*gathers.rows, rank=1))
    assert analysis.hangs == ()
    assert not analysis.context.instances.complete.any()


def test_a_given_marker_makes_the_steps_and_ranges_inside_it_do_not_count() -> None:
    program = Program()
    program.step(8, 0, 100)
    for start_ns, end_ns in ((0, 40), (5, 10), (40, 70)):
        program.range("my step", start_ns, end_ns, category="user_annotation")
    program.kernel(0, 0, 30)
    program.kernel(45, 50, 60)
    analysis = analysis_of(trace(*program.rows), settings={"step_marker": "my step"})
    assert [(step.number, step.start_ns, step.end_ns) for step in analysis.timeline.ranks[0].steps] == [
        (1, 0, 40),
        (2, 40, 70),
    ]
    absent = analysis_of(trace(*program.rows), settings={"step_marker": "absent"})
    assert absent.ledger.ranks == ()


@pytest.mark.parametrize("group", ["0", "mesh_dp"])
def test_a_given_axis_belongs_to_the_groups_of_that_name_or_description(group: str) -> None:
    program = _all_reduces((10, 60), ranks=(0, 1))
    analysis = analysis_of(trace(*program.rows), world_size=2, settings={"axes": {group: "tp"}})
    assert analysis.ledger.total("exposed_transfer[tp]") == 50


@pytest.mark.parametrize(("size", "term"), [(2, "exposed_transfer[world]"), (1, "exposed_transfer[group:]")])
def test_a_group_of_all_ranks_is_the_world_also_where_torch_abbreviates_its_ranks(size: int, term: str) -> None:
    program = _all_reduces((10, 60), ranks=())
    stated = TraceCollective(name="allreduce", group="0", group_size=size, dtype="Float")
    program.rows = [replace(row, collective=stated) if row.collective is not None else row for row in program.rows]
    assert analysis_of(trace(*program.rows), world_size=2).ledger.total(term) == 50


def _with_leftover() -> Program:
    """An all-reduce that the host queued before the trace began, and one of the step."""
    program = _all_reduces((20, 40), ranks=(0, 1))
    stated = TraceCollective(name="allreduce", group="0", description="mesh_dp", ranks=(0, 1), dtype="Float")
    leftover = _kernel(5, 15, of=999)
    program.rows.append(replace(leftover, name="ncclDevKernel_AllReduce", thread="20", collective=stated))
    return program


def test_a_collective_queued_before_the_trace_is_not_matched_with_one_of_a_step() -> None:
    analysis = analysis_of(trace(*_with_leftover().rows), trace(*_all_reduces((20, 40), ranks=(0, 1)).rows, rank=1))
    assert analysis.hangs == ()
    assert analysis.ledger.total("exposed_wait[dp]") == 0
    assert int(analysis.context.instances.complete.sum()) == 1


def test_the_first_step_begins_when_the_works_from_before_the_trace_are_done() -> None:
    program = Program()
    program.step(0, 10, 100)
    program.rows.append(_kernel(12, 50, of=999))
    program.kernel(11, 50, 100)
    assert ledger_of(trace(*program.rows)) == {0: {"other_compute": 50}}


@pytest.mark.parametrize("settings", [None, {"step_marker": "my step"}])
def test_steps_that_a_trace_numbers_itself_match_no_collectives(settings: dict[str, str] | None) -> None:
    programs = _all_reduces((20, 40), ranks=(0, 1)), _all_reduces((20, 40), ranks=(0, 1))
    for program in programs:
        program.rows = [row for row in program.rows if "ProfilerStep" not in row.name]
        program.range("my step", 0, 60)
        for at in (0, 60):
            program.range("Optimizer.step#SGD.step", at, at + 5, category="user_annotation")
    analysis = analysis_of(trace(*programs[0].rows), trace(*programs[1].rows, rank=1), settings=settings)
    assert [len(rank.steps) for rank in analysis.timeline.ranks] == [1, 1]
    assert not analysis.context.instances.complete.any()
    assert analysis.timeline.clocks[1].bound_ns is None


def test_messages_in_a_group_of_more_than_two_ranks_are_not_matched() -> None:
    programs = [_all_reduces((10, 60), ranks=(0, 1, 2)) for _ in range(3)]
    stated = TraceCollective(name="send", group="0", description="mesh_pp", ranks=(0, 1, 2), dtype="Float")
    traces = []
    for rank, program in enumerate(programs):
        rows = [replace(row, collective=stated) if row.collective else row for row in program.rows]
        traces.append(trace(*rows, rank=rank))
    analysis = analysis_of(*traces)
    assert not analysis.context.instances.complete.any()
    assert analysis.ledger.total("exposed_transfer[pp]") == 3 * 50


def test_a_cut_trace_gives_no_ledger() -> None:
    program = Program()
    program.step(0, 0, 10)
    program.kernel(0, 0, 10)
    cut = trace(*program.rows, lost="it ends before its events do")
    assert analysis_of(cut).ledger.ranks == ()
    (rank,) = run_of(cut).ranks
    assert rank.problems == ("hand-made.json is cut, so it gives no ledger: lost kernels would seem idle time",)


def test_a_collective_before_step_0_and_the_first_one_in_it_are_two() -> None:
    rows = [replace(row, collective=None) for row in _with_leftover().rows]
    instances = analysis_of(trace(*rows), world_size=2).context.instances
    assert sorted(instances.transfer_ns.tolist()) == [10, 20]


COMPILATIONS = ("compile", "/opt/lib/torch/_dynamo/convert_frame.py(1042): _compile", "compile_inner (dynamo_timed)")


@pytest.mark.parametrize("name", COMPILATIONS)
def test_all_names_of_a_compilation_are_known(name: str) -> None:
    program = Program()
    program.step(0, 0, 50)
    program.range(name, 0, 30)
    program.kernel(40, 42, 50)
    assert ledger_of(trace(*program.rows)) == {0: {"compile": 30, "launch_gap": 12, "other_compute": 8}}


def test_damaged_sizes_are_bounded() -> None:
    program = _all_reduces((10, 60), ranks=(0, 1))
    stated = TraceCollective(
        name="allreduce", group="0", group_size=4_000_000_000, dtype="Float", in_elements=2**63 - 1
    )
    rows = [replace(row, collective=stated) if row.collective else row for row in program.rows]
    assert ledger_of(trace(*rows), world_size=2)[0]["other_compute"] == 11


def _copy(start_ns: int, end_ns: int) -> Row:
    return Row(category="gpu_memcpy", name="Memcpy HtoD", start_ns=start_ns, end_ns=end_ns, process="0", thread="9")


def _kernel(start_ns: int, end_ns: int, *, of: int) -> Row:
    return Row(
        category="kernel", name="gemm", start_ns=start_ns, end_ns=end_ns, process="0", thread="7", correlation=of
    )


def _call(name: str, start_ns: int, end_ns: int) -> Row:
    return Row(category="cuda_runtime", name=name, start_ns=start_ns, end_ns=end_ns, process="host", thread="1")


def test_waits_of_the_host_are_hidden_only_while_the_gpu_works_in_a_step() -> None:
    program = Program()
    program.step(0, 10, 100)
    program.kernel(0, 0, 40)
    program.range("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 5, 60)
    program.range("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 90, 200)
    program.rows.append(_copy(50, 55))
    program.kernel(80, 85, 100)
    # The compute stream is busy until 40 with work launched before the step, so the step begins at 40. Hidden are the
    # copy (50 to 55) and the second wait until the step ends (90 to 100). Idle is 55 to 60; before 50 the GPU idles for
    # a copy whose launching thread is unknown.
    result = analysis_of(trace(*program.rows))
    assert result.host_hidden_waits == {"data_wait": 5 + 10}
    assert result.ledger.total("data_wait") == 5


def test_a_pipeline_of_three_stages_has_a_bubble_without_matched_messages() -> None:
    """F = 10, B = 20 on each stage: (p - 1) (F + B) = 60 of schedule. In a group of more than two ranks, a rank's
    messages are not matched, so their time is in the jitter: 5 for each of the four hops."""
    group = TraceCollective(name="send", group="7", description="pp", ranks=(0, 1, 2), group_size=3)
    programs = []
    for stage in range(3):
        program = Program()
        program.step(0, 0, 200)
        forward_ns, backward_ns = 15 * stage, 45 + 25 * (2 - stage) - 5
        program.rows += [_receive(0, forward_ns, group)] if stage else []
        program.range(f"PP:{stage}F0", 1, 5, category="user_annotation")
        program.range("## forward ##", 2, 4)
        program.kernel(3, forward_ns, forward_ns + 10)
        program.rows += [_receive(forward_ns + 10, backward_ns, group)] if stage < 2 else []
        program.range(f"PP:{stage}B0", 6, 10, category="user_annotation")
        program.range("## backward ##", 7, 9)
        program.kernel(8, backward_ns, backward_ns + 20)
        program.rows += [_receive(backward_ns + 20, 110, group)] if stage else []
        programs.append(trace(*program.rows, rank=stage))
    analysis = analysis_of(*programs)
    assert (analysis.hangs, analysis.faults) == ((), ())
    for rank in analysis.ledger.ranks:
        shares = {term: int(ns[0]) for term, ns in rank.terms.items() if ns is not None and ns[0]}
        assert shares.pop("unattributed", 0) == 90
        assert shares == {"forward": 10, "backward": 20, "bubble.schedule": 60, "bubble.jitter": 20}


def _receive(start_ns: int, end_ns: int, group: TraceCollective) -> Row:
    row = kernel("ncclDevKernel_SendRecv", start_ns, end_ns, stream="40")
    return replace(row, collective=group)
