"""AdamW, its learning rate, and gradient clipping.

The state lies with the parameters, spread over replicas (ZeRO-1), on the host (`host_adamw`) or in files
(`streamed_adamw`). How gradients travel between ranks stands in `sharing`.
"""
