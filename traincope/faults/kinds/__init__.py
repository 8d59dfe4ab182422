"""The list of all faults. A new fault is one entry of a module here."""

from traincope.faults.kinds.collectives import COLLECTIVES
from traincope.faults.kinds.ends import ENDS
from traincope.faults.kinds.fault import Fault
from traincope.faults.kinds.slowness import SLOWNESS
from traincope.faults.kinds.stuck import STUCK
from traincope.faults.kinds.surroundings import SURROUNDINGS
from traincope.faults.kinds.values import VALUES

FAULTS: dict[str, Fault] = {
    fault.name: fault for fault in (*SLOWNESS, *COLLECTIVES, *STUCK, *ENDS, *VALUES, *SURROUNDINGS)
}
"""Name -> fault."""
