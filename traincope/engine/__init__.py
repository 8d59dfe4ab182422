"""The parallel training engine, composed from torch's own parts.

    config       the configuration, checked before any process starts
    ranks        the process group, the device mesh, and what torch keeps private
    model        the GPT with attention, experts and starting weights
    parallel     tensor, context, expert and pipeline parallelism, and recomputation
    sharing      DDP, FSDP2, ZeRO++ and offloading
    optimizer    AdamW in four places, and gradient clipping
    corpus       files -> byte tokens, split into training and held-out text
    batches      tokens -> the slice of each global batch that one replica trains on
    trainer      all of it together: a generator of optimizer steps
    checkpoint   saves a training, and continues it to the bit
    launch       one torchrun on this machine, and its failure as an exception

The engine does not import the recorder. `config`, `corpus` and `launch` need no torch.
"""
