"""The figures that sections of a report draw, by name: HTML and the viewer share them."""

from collections.abc import Callable, Mapping

from traincope.figures.drawing.themes import Figure
from traincope.figures.efficiency.experts import expert_load
from traincope.figures.efficiency.gpus import gpu_shares
from traincope.figures.efficiency.kernels import kernel_classes
from traincope.figures.efficiency.waterfall import waterfall
from traincope.figures.ranks.critical_path import critical_path_step
from traincope.figures.ranks.heatmap import rank_heatmap
from traincope.figures.ranks.icicle import communication_icicle
from traincope.figures.ranks.rank_shares import rank_shares
from traincope.figures.ranks.schedule import pipeline_schedule
from traincope.figures.ranks.wait_matrix import wait_matrix
from traincope.figures.run.faults import fault_timeline
from traincope.figures.run.goodput import goodput_bars
from traincope.figures.run.rolling import rolling_goodput
from traincope.figures.steps.gpu_samples import gpu_sample_curves
from traincope.figures.steps.hardware import hardware_over_time
from traincope.figures.steps.ledger_steps import ledger_steps
from traincope.figures.steps.loss_curves import logged_curves
from traincope.figures.steps.memory import memory_over_steps

DRAWN: Mapping[str, Callable[..., Figure]] = {
    "waterfall": waterfall,
    "steps": ledger_steps,
    "shares": rank_shares,
    "curves": logged_curves,
    "rolling": rolling_goodput,
    "happened": fault_timeline,
    "classes": kernel_classes,
    "gpus": gpu_shares,
    "path": critical_path_step,
    "job": goodput_bars,
    "heatmap": rank_heatmap,
    "icicle": communication_icicle,
    "schedule": pipeline_schedule,
    "waits": wait_matrix,
    "load": expert_load,
    "held": memory_over_steps,
    "readings": gpu_sample_curves,
    "driver": hardware_over_time,
}
"""Name -> the function that draws it of its results."""
