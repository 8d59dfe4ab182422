"""Which parameters outside of units are read, and for how many optimizers their hook looks."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from traincope.record.compute.phases import Phases
from traincope.record.session.recorder import Recorder
from traincope.record.state import outside_units
from traincope.record.state.outside_units import MAX_LOOKS, OutsideUnits


def test_complex_parameters_are_not_read() -> None:
    """A cast to real numbers would warn."""
    assert outside_units._values(torch.nn.Parameter(torch.ones(3, dtype=torch.complex64))) is None
    assert outside_units._values(torch.nn.Parameter(torch.ones(3))).tolist() == [1.0, 1.0, 1.0]


def test_only_the_first_optimizers_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A training may make an optimizer per parameter, and a look walks through all modules."""
    looks: list[Any] = []
    monkeypatch.setattr(outside_units, "_units", looks.append)
    hook = OutsideUnits(Phases())
    hook.install(cast("Recorder", SimpleNamespace()))
    for _ in range(2 * MAX_LOOKS):
        hook._look(None)
    assert len(looks) == MAX_LOOKS
