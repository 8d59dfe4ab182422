"""Pipeline schedules as plain data: for each rank, its actions in order.

    shape         the size of a pipeline, and where its stages lie
    one_stage     naive, GPipe, 1F1B
    interleaved   1F1B with several stages a rank
    zero_bubble   ZB-1P, ZB-V
    dualpipev     DualPipeV
    schedules     all of them by name, and which sizes each can have

Sends and receives are not in an order: they follow from it. A new schedule is one function and one
line in SCHEDULES.
"""

from traincope.plan.orders.schedules import SCHEDULES, Schedule, find, orders
from traincope.plan.orders.shape import Shape, loop, vee

__all__ = ["SCHEDULES", "Schedule", "Shape", "find", "loop", "orders", "vee"]
