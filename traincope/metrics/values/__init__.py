"""Computation of metric values: one function per metric, for a running job and for the replay of a finished run.

Each function yields points of single series on one node. A running job sums them window by window. The replay spreads
them over time. Metrics that only one of the two has are not here.
"""

from collections.abc import Callable, Iterator, Mapping

from traincope.metrics import catalogue
from traincope.metrics.values.communication import ambiguous_waits, collective_waits, collectives
from traincope.metrics.values.efficiency import bubble, run_ahead, tokens, utilization
from traincope.metrics.values.points import Node, Points, RankSteps, bucket_of, sum_by_step
from traincope.metrics.values.recorded import actions, limit_modules, logged, memory, modules
from traincope.metrics.values.rows import ROW_METRICS, is_shown, row_points, step_rows

__all__ = [
    "NODE_METRICS",
    "ROW_METRICS",
    "Node",
    "Points",
    "RankSteps",
    "bucket_of",
    "is_shown",
    "limit_modules",
    "row_points",
    "step_rows",
    "sum_by_step",
]

NODE_METRICS: Mapping[str, Callable[[Node], Iterator[Points]]] = {
    catalogue.MFU.name: utilization,
    catalogue.MFU_PAPER.name: utilization,
    catalogue.HFU.name: utilization,
    catalogue.BUBBLE.name: bubble,
    catalogue.BUBBLE_PART.name: bubble,
    catalogue.BUBBLE_THEORY.name: bubble,
    catalogue.TOKENS.name: tokens,
    catalogue.RUN_AHEAD.name: run_ahead,
    catalogue.MEMORY.name: memory,
    catalogue.LOGGED.name: logged,
    catalogue.COLLECTIVE_TIMES.name: collectives,
    catalogue.COLLECTIVE_BYTES.name: collectives,
    catalogue.COLLECTIVE_WAIT.name: collective_waits,
    catalogue.AMBIGUOUS_WAIT.name: ambiguous_waits,
    catalogue.COLLECTIVE_TRANSFER.name: collectives,
    catalogue.BUS_BANDWIDTH.name: collectives,
    catalogue.MODULE_TIME.name: modules,
    catalogue.ACTION_TIME.name: actions,
}
"""Metric name -> function that yields the metric, perhaps with others."""
