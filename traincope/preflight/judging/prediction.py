"""Step time that `traincope plan` predicts from the measured rates of ranks and links."""

from dataclasses import dataclass
from statistics import median

from traincope.errors import UsageError
from traincope.plan.layout.activations import ActivationPolicy
from traincope.plan.layout.kernels import uniform
from traincope.plan.layout.layout import Layout
from traincope.plan.layout.machine import Machine
from traincope.plan.layout.prediction import Prediction, predict
from traincope.plan.model.precision import Precision
from traincope.plan.model.transformer import Transformer
from traincope.preflight.judging.links import Way, way
from traincope.preflight.judging.ranks import usual_seconds
from traincope.preflight.measurements import Measurements, Quantity, Round
from traincope.preflight.robust import Fit, fit

UNLIMITED_BYTES = 1 << 60
"""Memory of a device whose size does not matter here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredModel:
    """Model and layout of the configuration, as the formulas of `plan` take them."""

    shape: Transformer
    layout: Layout
    precision: Precision
    policy: ActivationPolicy


def predict_step(measured: Measurements, model: ConfiguredModel) -> Prediction | None:
    """Predict a step; None if rates or links were not measured, or `plan` has no formula for the layout."""
    machine = measured_machine(measured)
    if machine is None:
        return None
    try:
        return predict(
            model.shape,
            layout=model.layout,
            precision=model.precision,
            policy=model.policy,
            machine=machine,
            causal_half=model.policy.flash,
        )
    except UsageError:
        return None


def measured_machine(measured: Measurements) -> Machine | None:
    """The machine by its medians. Without pairs of one class, those of the other; None without any."""
    flops, memory = (median_rate(measured, quantity) for quantity in Quantity)
    links = {kind: link_fit(measured, kind) for kind in Way}
    within, between = links[Way.WITHIN] or links[Way.BETWEEN], links[Way.BETWEEN] or links[Way.WITHIN]
    if flops is None or memory is None or within is None or between is None:
        return None
    if within.bytes_per_second is None or between.bytes_per_second is None:
        return None
    hosts = [place.host for place in measured.places]
    return Machine(
        peak_flops=flops,
        kernels=uniform(1.0),
        memory_bytes=UNLIMITED_BYTES,
        memory_bytes_per_second=memory,
        ranks_per_node=max(hosts.count(host) for host in hosts),
        node_bytes_per_second=within.bytes_per_second,
        network_bytes_per_second=between.bytes_per_second,
        node_latency_seconds=within.latency_seconds,
        network_latency_seconds=between.latency_seconds,
    )


def median_rate(measured: Measurements, quantity: Quantity) -> float | None:
    """FLOP/s or bytes/s of the median rank, in the first round."""
    rates = [rate.amount / usual_seconds(rate, Round.FIRST) for rate in measured.rates if rate.quantity is quantity]
    return median(rates) if rates else None


def link_fit(measured: Measurements, kind: Way) -> Fit | None:
    """Latency and bandwidth of the median pair of a class."""
    times: dict[int, list[float]] = {}
    for each in measured.pairs:
        if each.round is Round.FIRST and way(measured, each.ranks) is kind:
            times.setdefault(each.num_bytes, []).append(median(each.seconds))
    return fit({num_bytes: median(seconds) for num_bytes, seconds in times.items()})
