"""Fault injector: faults with a known answer, in any training on torch.distributed.

    injection.py    what to inject: the text `NAME@rank=1,step=20`, and the truth that is written when it happens
    moments.py      the steps and phases of a training, from torch's own hooks
    calls.py        collectives that a rank leaves out or issues wrongly
    kinds/          the faults: one module per theme, listed in `kinds/__init__.py`
    install.py      inject what the environment asks for

It does not import the recorder. A fault acts where it acts in a real training: the training's thread sleeps, its
process gets a signal, its collective is not issued.
"""

from traincope.inject.injection import FAULT_VARIABLE, TRUTH_VARIABLE, Injection, Truth, parse_injections, read_truths
from traincope.inject.install import inject_requested
from traincope.inject.kinds import FAULTS

__all__ = [
    "FAULTS",
    "FAULT_VARIABLE",
    "TRUTH_VARIABLE",
    "Injection",
    "Truth",
    "inject_requested",
    "parse_injections",
    "read_truths",
]
