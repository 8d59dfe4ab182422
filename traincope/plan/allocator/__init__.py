"""Peak of a rank's bytes in torch's allocator, when the engine trains in fp32 on a CPU.

`layout/memory` counts what fused modules keep. Here every operator of the engine's modules is played as torch runs it:
what it creates, what it saves for backward, and what its backward creates. `tape` follows the bytes, `operators` and
`modules` describe the model, `sharing` what data ranks keep, `rank` plays a step. The sources are torch's derivative
formulas (tools/autograd/derivatives.yaml), its engine's rules (torch/csrc/autograd: engine.cpp, input_buffer.cpp,
accumulate_grad.h), and the code of FSDP2 (torch/distributed/fsdp/_fully_shard). No number is fitted.
"""
