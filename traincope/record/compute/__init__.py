"""Hooks on computation: phases, pipeline actions, blocks, data waits, checkpoints, FLOPs, memory and logged values.

Communication is in `record.communication`. Counters that only the GPU's driver knows are in `record.gpu`.
"""
