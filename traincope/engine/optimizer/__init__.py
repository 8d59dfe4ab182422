"""AdamW, its learning rate, gradient clipping, and the steps whose update is skipped.

The state lies with the parameters, spread over replicas (ZeRO-1), on the host (`host_adamw`) or in files
(`streamed_adamw`). How gradients travel between ranks stands in `sharing`.
"""
