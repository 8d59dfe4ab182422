"""Parallelism that divides computation: tensor, context, expert and pipeline parallelism.

`recompute` decides which activations backward computes again. `unpipelined` runs a batch without a pipeline.
Replicas and shards of parameters stand in `sharing`.
"""
