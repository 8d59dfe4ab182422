"""Pipeline schedules as plain data: for each rank, its actions in order.

    shape         size of a pipeline, and the place of its stages
    one_stage     naive, GPipe, 1F1B
    interleaved   1F1B with several stages per rank
    zero_bubble   ZB-1P, ZB-V
    dualpipev     DualPipeV
    schedules     all of them by name, and the sizes that each supports

An order has no sends and receives: they follow from it. A new schedule is one function and one line in SCHEDULES.
"""

from traincope.plan.pipeline.orders.schedules import SCHEDULES, Schedule, orders, resolve_schedule
from traincope.plan.pipeline.orders.shape import Shape, loop, vee

__all__ = ["SCHEDULES", "Schedule", "Shape", "loop", "orders", "resolve_schedule", "vee"]
