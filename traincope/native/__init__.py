"""The native recorder: C++ kernels before torch's collectives, which write the records that the Python hooks write.

`dispatch/` has the sources. `build` compiles them where a person asks for it, `installed` finds and checks a compiled
library, `library` declares its functions. A training never compiles.
"""
