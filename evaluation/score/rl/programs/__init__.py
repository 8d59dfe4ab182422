"""Jobs of a small GRPO on the engine's model: all in one, or as roles. Each injects the fault that it is given.

They are launched by torchrun. `FAULT` is the fault as JSON; `EXCHANGE` the folder over which roles exchange files.
"""
