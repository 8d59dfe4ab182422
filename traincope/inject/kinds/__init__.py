"""The list of all faults. A new fault is one entry of a module here."""

from traincope.inject.kinds.collectives import COLLECTIVES
from traincope.inject.kinds.ends import ENDS
from traincope.inject.kinds.fault import Fault
from traincope.inject.kinds.slowness import SLOWNESS
from traincope.inject.kinds.stuck import STUCK
from traincope.inject.kinds.surroundings import SURROUNDINGS
from traincope.inject.kinds.values import VALUES

FAULTS: dict[str, Fault] = {
    fault.name: fault for fault in (*SLOWNESS, *COLLECTIVES, *STUCK, *ENDS, *VALUES, *SURROUNDINGS)
}
"""Name -> fault."""
