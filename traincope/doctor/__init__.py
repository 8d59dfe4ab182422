"""Check whether recording works here, or worked in a run: facts, what they mean, what to do.

`machine` examines this environment by recording a trial (`software`, `gpu`, `probes`, `disk`), `recorded` a run
directory. `finding` is the result, `text` prints it and makes its JSON. Faults of a training are in the report, not
here.
"""

from traincope.doctor.finding import Examination, Finding, Section, State
from traincope.doctor.machine import examine_machine
from traincope.doctor.recorded import examine_run
from traincope.doctor.text import render, to_document

__all__ = ["Examination", "Finding", "Section", "State", "examine_machine", "examine_run", "render", "to_document"]
