"""The parallel training engine, composed from torch's own parts; it knows nothing of the recorder.

    config             what to train and how it is laid out, checked before any process starts
    checks             what its values are held to
    load               TOML file and `--set a.b=value` -> config
    corpus             files -> byte tokens, split into training and held-out text
    batches            tokens -> the slice of every global batch that one replica trains on
    documents          where those that are packed in a batch begin and end
    rotary             positions as angles
    attention          over whole sequences, or within documents
    model              a GPT, whole or the layers of one pipeline stage
    initialise         the same starting weights, whatever the layout
    mesh               ranks -> one DeviceMesh, and where a rank stands on it
    tensor_parallel    matrix products cut over ranks, norms along the sequence
    context_parallel   sequences cut over ranks, whose attention is one of
    ring_attention     keys and values go round
    ulysses            heads are exchanged for tokens
    router             which experts a token passes
    slots              which rows it takes for them, and what a capacity drops
    moe                the experts, in place of a feed-forward
    expert_parallel    experts spread over ranks, tokens sent to them and back
    expert_load        what every expert got
    recompute          what backward computes again instead of keeping it
    data_parallel      DDP
    compression        the form in which its gradients travel
    sharded            FSDP2 and HSDP, ZeRO's stages 2 and 3
    zeropp             less of its communication, as
    quantized          blocks of int8
    offload            shards in the CPU's memory, or in files
    mapped             tensors whose memory is a file
    pipeline           a batch through this rank's stages, in an order of `plan.orders`
    whole              a batch through all layers, where there is no pipeline
    clipping           the norm of a gradient that lies on many ranks
    optimizer          AdamW, its state here, over the replicas (ZeRO-1), or in files
    streamed_adamw     AdamW from files, one block at a time
    trainer            all of it together: a generator of optimizer steps
    bootstrap          torchrun's environment -> process group
    launch             torchrun on this machine, and what became of it
    torch_private      the private names of torch that all this stands on

`config`, `load`, `corpus` and `launch` are importable without torch.
"""
