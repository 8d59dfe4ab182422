"""Replicas and shards of parameters, and where they lie.

`data_parallel` is DDP, `sharded` FSDP2 and HSDP, `zeropp` their compressed communication, `offload` host memory and
files. Parallelism that divides computation stands in `parallel`.
"""
