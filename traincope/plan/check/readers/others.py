"""Configurations of other tools that are not read, known by their keys."""

import re

OF_OTHERS = "give Megatron-LM's arguments, DeepSpeed's JSON or torchtitan's configuration"
BATCH_OF_TRAINER = "per_device_train_batch_size"
"""Key of the arguments of transformers' Trainer."""
YAML_OF = {
    "a configuration of NeMo": r"^(?:trainer|exp_manager)\s*:|^\s*_target_\s*:|^\s*encoder_seq_length\s*:",
    "a configuration of Accelerate": r"^(?:compute_environment|distributed_type)\s*:",
    "a configuration of LLaMA-Factory": r"^finetuning_type\s*:",
    "a configuration of Axolotl": r"^base_model\s*:",
    "a configuration of llm-foundry": r"^(?:max_seq_len|global_train_batch_size|device_train_microbatch_size)\s*:",
    "the arguments of transformers' Trainer": rf"^{BATCH_OF_TRAINER}\s*:",
}
"""Tool -> a line of its YAML. Those of NeMo have some of Megatron-LM's names with other defaults."""


def other_yaml(text: str) -> str | None:
    """Return what the YAML is, if a tool of `YAML_OF` reads it."""
    return next((what for what, line in YAML_OF.items() if re.search(line, text, re.MULTILINE)), None)
