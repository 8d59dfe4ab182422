"""Native code: the recorder, which is C++ kernels before torch's collectives, and two others that depend on no torch.

`dispatch/` has the recorder's sources, `installed` finds its library, `library` declares its functions. `nccl` is the
plugin for NCCL's profiler interface, `decoder` the decoder of traces. `build` compiles all of them where a person asks
for it, `cached` checks compiled files. A training never compiles.
"""
