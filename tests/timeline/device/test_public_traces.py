"""The device timeline of real traces. They are not in the repository: without them, these tests skip."""

import numpy as np
import pytest

from tests.ingest.test_public_traces import EXPECTED, TRACES, expected
from traincope.analysis.kernels.gpu_partition import partition
from traincope.events import Phase
from traincope.ingest.traces.kineto import read_kineto
from traincope.timeline.device.owners import owned
from traincope.timeline.device.works import gpus, works

COMPUTE = (Phase.FORWARD, Phase.BACKWARD, Phase.RECOMPUTE, Phase.OPTIMIZER, Phase.OTHER_COMPUTE)


pytestmark = pytest.mark.skipif(not EXPECTED.is_file(), reason=f"the public GPU traces are not in {TRACES}")


@pytest.mark.parametrize("name", expected())
def test_the_owners_are_the_partition_of_the_gpu_to_the_nanosecond(name: str) -> None:
    trace = read_kineto(TRACES / name)
    (reference,) = (part for part in partition(0, trace) if part.device == gpus(trace)[0])
    kernels = works(trace, reference.device)
    pieces = owned(trace, kernels, borders_ns=np.array([kernels.start_ns.min(), kernels.end_ns.max()]))
    length_ns, sends = pieces.end_ns - pieces.start_ns, pieces.work >= 0
    assert int(length_ns.sum()) == reference.span_ns
    assert int(length_ns[np.isin(pieces.phase, COMPUTE)].sum()) == reference.compute_ns
    assert int(length_ns[sends].sum()) == reference.exposed_communication_ns
    assert int(length_ns[pieces.phase == Phase.EXPOSED_MEMORY].sum()) == reference.exposed_memory_ns
