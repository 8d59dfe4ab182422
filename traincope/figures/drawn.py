"""The figures that sections of a report draw, by name: HTML and the viewer share them."""

from collections.abc import Callable, Mapping
from typing import Any

from traincope.figures.drawing.themes import Figure
from traincope.figures.efficiency.experts import expert_load
from traincope.figures.ranks.critical_path import critical_path_step
from traincope.figures.ranks.heatmap import rank_heatmap
from traincope.figures.run.goodput import goodput_bars
from traincope.figures.steps.memory import memory_over_steps

DRAWN: Mapping[str, Callable[[Any], Figure]] = {
    "path": critical_path_step,
    "job": goodput_bars,
    "heatmap": rank_heatmap,
    "load": expert_load,
    "held": memory_over_steps,
}
"""Name -> the function that draws it of one result."""
