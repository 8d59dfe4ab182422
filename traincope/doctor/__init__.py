"""Whether recording works here, or worked in a run: facts, what they mean, what to do.

finding.py      what an examination says
machine.py      this environment, by really trying: software, gpu, probes, disk, settings
recorded.py     a run directory, by what its ranks wrote about themselves
text.py         findings -> text; `to_document` -> JSON
"""

from traincope.doctor.finding import Examination, Finding, Section, State
from traincope.doctor.machine import examine_machine
from traincope.doctor.recorded import examine_run
from traincope.doctor.text import render, to_document

__all__ = ["Examination", "Finding", "Section", "State", "examine_machine", "examine_run", "render", "to_document"]
