"""Evidence for the FLOPs that shapes in imported traces give: whether they contain all products, and only the model's.

A kernel that may multiply and was launched by no operator with known FLOPs is a gap. Recomputation that no range shows
would count as the model's work, so two signs of it are checked: compiled backward passes, and a backward with more than
twice the FLOPs of forward. A product has one gradient per factor.
"""

from collections.abc import Iterator

import numpy as np

from traincope.analysis.efficiency.counted_flops import CountedFlops, counted_flops
from traincope.analysis.efficiency.work import ENOUGH_COVERAGE, ShapesEvidence
from traincope.analysis.kernels.kernel_classes import ATTENTION, GEMM, UNKNOWN, kernel_class
from traincope.events import Phase
from traincope.store.side_tables.traces import Trace
from traincope.timeline import Timeline
from traincope.timeline.device.products import launching_product
from traincope.timeline.device.steps import device_steps
from traincope.timeline.device.works import gpus, is_communication, works
from traincope.timeline.intervals.painting import ABSENT
from traincope.units import share

MAY_MULTIPLY = (GEMM, ATTENTION, UNKNOWN)
MAX_SHOWN = 60
"""Characters of a kernel's name in a sentence: templates have thousands."""
COMPILED = "CompiledFunctionBackward"
"""Part of the names of autograd's nodes that run a compiled backward."""
GIVE_MODEL = "give the model with traincope import --model"
ONLY_A_LIST = "a list of runs and interruptions has no FLOPs"
NO_SHAPES = f"the traces contain no shapes; profile with record_shapes=True, or {GIVE_MODEL}"
NO_PRODUCTS = f"no operator of the traces is a product whose FLOPs its shapes give; {GIVE_MODEL}"
COMPILED_BACKWARD = f"a compiled backward may contain recomputation that no range shows; {GIVE_MODEL}"
NO_FLOPS = f"a table of operations contains no FLOPs; {GIVE_MODEL}"
NO_GPU = "the traces contain no events of a GPU, so no peak belongs to their FLOPs"
NO_WORLD_SIZE = "the traces do not state the number of ranks (distributedInfo, from torch 2.1 on)"
NO_PHASE = (
    "{} of the FLOPs are launched outside of forward and backward; annotate them "
    f"(record_function('## forward ##')), or {GIVE_MODEL}"
)
REPEATED = f"backward has more than twice the FLOPs of forward, so it recomputes without a range; {GIVE_MODEL}"


def shapes_evidence(timeline: Timeline) -> ShapesEvidence | None:
    """Check the FLOPs of an imported run; None for a recorded run."""
    if not timeline.run.info.imported:
        return None
    if timeline.run.logbook is not None:
        return ShapesEvidence(executed_reason=ONLY_A_LIST, model_reason=None, rank_reason=None)
    if timeline.run.operations is not None:
        return ShapesEvidence(executed_reason=NO_FLOPS, model_reason=None, rank_reason=None)
    if timeline.of_host_traces:
        return ShapesEvidence(executed_reason=NO_GPU, model_reason=None, rank_reason=None)
    counted = {rank.rank: counted_flops(rank) for rank in timeline.ranks}
    marker = timeline.run.info.settings.get("step_marker")
    executed = None
    has_shapes = is_compiled = stated = communicates = False
    for trace in (trace for rank in counted for trace in timeline.traces.ranks.get(rank, ())):
        executed = executed or next(_gaps(trace, marker=marker), None)
        has_shapes |= trace.info.has_shapes
        is_compiled |= any(COMPILED in name for name in trace.names)
        stated |= trace.info.world_size is not None
        communicates |= bool(is_communication(trace).any())
    if executed is None and (None in counted.values() or not counted):
        executed = NO_PRODUCTS if has_shapes else NO_SHAPES
    model = next((why for each in counted.values() if each for why in _repetitions(each)), None)
    if model is None and is_compiled:
        model = COMPILED_BACKWARD
    alone = stated or not communicates
    return ShapesEvidence(executed_reason=executed, model_reason=model, rank_reason=None if alone else NO_WORLD_SIZE)


def _gaps(trace: Trace, *, marker: str | None) -> Iterator[str]:
    """Sentence that names the longest kernel without FLOPs, if such kernels take too large a share of the steps."""
    if not trace.info.has_shapes:
        yield NO_SHAPES
        return
    for gpu in gpus(trace)[:1]:
        kernels = works(trace, gpu)
        in_steps = device_steps(trace, kernels, marker=marker).at(kernels.start_ns) >= 0
        rows = kernels.row[kernels.compute & in_steps]
        multiplies = np.array([kernel_class(name).name in MAY_MULTIPLY for name in trace.names])[trace.name[rows]]
        missed = rows[multiplies & (launching_product(trace, rows) == ABSENT)]
        ratio = int(trace.duration_ns[missed].sum()) / max(int(trace.duration_ns[rows].sum()), 1)
        if ratio > 1 - ENOUGH_COVERAGE:
            longest = trace.names[trace.name[missed[np.argmax(trace.duration_ns[missed])]]][:MAX_SHOWN]
            yield f"kernels with {share(ratio)} of the compute time have unknown FLOPs, such as {longest}; {GIVE_MODEL}"


def _repetitions(counted: CountedFlops) -> Iterator[str]:
    by_phase = dict.fromkeys(Phase, 0.0) | counted.needed_by_phase()
    spare, total = 2 - ENOUGH_COVERAGE, sum(by_phase.values())
    if total and by_phase[Phase.OTHER_COMPUTE] / total > 1 - ENOUGH_COVERAGE:
        yield NO_PHASE.format(share(by_phase[Phase.OTHER_COMPUTE] / total))
    if by_phase[Phase.BACKWARD] > 2 * spare * by_phase[Phase.FORWARD]:
        yield REPEATED
