"""The parts of a layout's expected step, and why one layout is faster than another."""

from collections.abc import Mapping

from traincope.plan.layout.prediction import Prediction

KERNELS, RECOMPUTE, OTHER, BUBBLE = "products and attention", "recomputation", "other operators", "bubble"
LAUNCHES, ENDS, COPIES, OPTIMIZER, OFFLOAD, HOST = (
    "launches",
    "ends of the pipeline",
    "copies and sums",
    "optimizer",
    "offload",
    "host and data",
)


def parts(prediction: Prediction) -> Mapping[str, float]:
    """Part -> seconds of the expected step. They sum to `expected_seconds`.

    Recomputation has products and attention; that of other operators is with them.
    """
    often = {
        KERNELS: prediction.kernel_seconds - prediction.recompute_seconds,
        RECOMPUTE: prediction.recompute_seconds,
        OTHER: prediction.pointwise_seconds,
        BUBBLE: prediction.bubble_seconds,
        **{f"exposed {each.axis}": each.exposed_seconds for each in prediction.axes},
    }
    rarely = {
        LAUNCHES: prediction.launch_seconds,
        ENDS: prediction.ends_seconds,
        COPIES: prediction.copy_seconds,
        OPTIMIZER: prediction.optimizer_seconds,
        OFFLOAD: prediction.offload_seconds,
        HOST: prediction.host_seconds,
    }
    return {**often, **{part: seconds for part, seconds in rarely.items() if seconds}}


def differences(winner: Prediction, other: Prediction) -> Mapping[str, float]:
    """Part -> seconds that `other` takes more than `winner`; largest difference first, both kinds. They sum to the
    difference of the steps.
    """
    ours, theirs = parts(winner), parts(other)
    more = {part: theirs.get(part, 0.0) - ours.get(part, 0.0) for part in {**ours, **theirs}}
    return dict(sorted(more.items(), key=lambda item: -abs(item[1])))
