"""Mesh axes of the process groups of Megatron and DeepSpeed, by their names there.

Megatron describes a group by its variable's name since torch 2.4 accepts a description. Before that, and in DeepSpeed,
only the variables themselves identify a group. Groups over several axes keep both names. DeepSpeed's copy of the world
is the group of its data parallelism.
"""

import sys
from typing import Any

DESCRIPTIONS = {
    "TENSOR_MODEL_PARALLEL_GROUP": "tp",
    "PIPELINE_MODEL_PARALLEL_GROUP": "pp",
    "DATA_PARALLEL_GROUP": "dp",
    "DATA_PARALLEL_GROUP_WITH_CP": "dp_cp",
    "DATA_PARALLEL_GROUP_WITH_CP_AG": "dp_cp",
    "INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP": "dp_cp",
    "INTER_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP": "dp_replicate",
    "INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP": "dp_cp",
    "INTER_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP": "dp_replicate",
    "CONTEXT_PARALLEL_GROUP": "cp",
    "EXPERT_MODEL_PARALLEL_GROUP": "ep",
    "EXPERT_PARALLEL_GROUP": "ep",
    "EXPERT_TENSOR_PARALLEL_GROUP": "etp",
    "EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP": "ep_tp",
    "EXPERT_DATA_PARALLEL_GROUP": "edp",
    "TENSOR_AND_DATA_PARALLEL_GROUP": "tp_dp",
    "TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP": "tp_dp_cp",
    "TENSOR_AND_CONTEXT_PARALLEL_GROUP": "tp_cp",
    "MODEL_PARALLEL_GROUP": "tp_pp",
    "EMBEDDING_GROUP": "embedding",
    "POSITION_EMBEDDING_GROUP": "embedding",
    "ZERO_PARAM_INTRA_PARALLEL_GROUP": "fsdp",
    "WORLD_GROUP": "dp",
}
"""Names in Megatron-LM's `parallel_state` and DeepSpeed's `utils/groups.py`, without the leading underscore."""

STATES = ("megatron.core.parallel_state", "megatron.mpu.initialize", "deepspeed.utils.groups")
"""Modules that keep their groups in variables of those names."""


def known_axis(group: Any, description: str) -> str | None:
    """Return the axis by the group's description, or by the variable that holds the group. None if neither is known."""
    axis = DESCRIPTIONS.get(description)
    return axis or next((axis for state in STATES for axis in _axes_held_by(sys.modules.get(state), group)), None)


def _axes_held_by(state: Any, group: Any) -> list[str]:
    """Return the axes of a module's variables that are the group, or that hold it in a dict.

    It asks for no attribute: a version of the framework that makes them on demand could raise.
    """
    variables: dict[str, Any] = {} if state is None else vars(state)
    axes = []
    for name, axis in DESCRIPTIONS.items():
        held = variables.get(f"_{name}")
        if held is group or (isinstance(held, dict) and any(member is group for member in held.values())):
            axes.append(axis)
    return axes
