"""The parts of a layout's expected step, and why one layout is faster than another."""

from collections.abc import Mapping

from traincope.plan.layout.prediction import Prediction

KERNELS, RECOMPUTE, OTHER, BUBBLE = "matrix products", "recomputation", "other operations", "bubble"
HOST = "host and data"


def parts(prediction: Prediction) -> Mapping[str, float]:
    """Part -> seconds of the expected step. They sum to `expected_seconds`."""
    return {
        KERNELS: prediction.kernel_seconds - prediction.recompute_seconds,
        RECOMPUTE: prediction.recompute_seconds,
        OTHER: prediction.pointwise_seconds,
        BUBBLE: prediction.bubble_seconds,
        **{f"exposed {each.axis}": each.exposed_seconds for each in prediction.axes},
        **({HOST: prediction.host_seconds} if prediction.host_seconds else {}),
    }


def differences(winner: Prediction, other: Prediction) -> Mapping[str, float]:
    """Part -> seconds that `other` takes more than `winner`; largest difference first, both kinds. They sum to the
    difference of the steps.
    """
    ours, theirs = parts(winner), parts(other)
    more = {part: theirs.get(part, 0.0) - ours.get(part, 0.0) for part in {**ours, **theirs}}
    return dict(sorted(more.items(), key=lambda item: -abs(item[1])))
