"""Ledger terms in which a host delays its rank: what happens in them, and the advice."""

HOST_LOSSES = {
    "checkpoint_stall": ("checkpoints stop training", "Save checkpoints asynchronously, or less often."),
    "gc": ("garbage collection stops the training thread", "Call gc.disable(), and gc.collect() between steps."),
    "compile": ("compilation stops training", "Keep tensor shapes constant, to compile only once."),
    "sync": ("the host waits for the device", "Read values from the device (.item(), print) less often."),
    "launch_gap": (
        "the GPUs wait for the host to launch their next kernel",
        "Launch fewer and larger kernels (torch.compile, CUDA graphs, larger batches), and do less between launches.",
    ),
    "exposed_memory": ("the GPUs only copy memory", "Copy from pinned memory on a separate stream, earlier and less."),
}
"""Term -> (description, advice), for terms without further analysis."""
