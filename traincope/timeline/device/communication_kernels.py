"""Communication kernels by name: a trace contains no other information about their purpose.

A library's word decides, or the name of a collective in the kernel's own name. Names that torch.compile makes list the
operators around a kernel that it generated, which communicates nothing. Matrix products that also communicate count as
compute: no record separates their two parts.
"""

import re

LIBRARIES = (
    ("rccl", ("rccl",)),
    ("msccl", ("msccl",)),
    ("uccl", ("uccl",)),
    ("nccl", ("nccl",)),
    ("nvshmem", ("nvshmem", "deep_ep", "deepep", "hybrid_ep", "internode::", "internode_ll::", "intranode::")),
    ("rocshmem", ("rocshmem", "rocm_shmem")),
    ("ishmem", ("ishmem",)),
    ("expert_exchange", ("pplx", "mori::", "moea2a", "moe_a2a", "dispatch_token", "combine_token")),
    ("userbuffers", ("userbuffers",)),
    (
        "symmetric_memory",
        (
            *("multimem", "one_shot_all_reduce", "two_shot_all_reduce", "symm_mem", "symmetric_memory"),
            *("cross_device_reduce", "cross_device_store", "intra_node_comm", "quickreduce"),
            *("put_signal_kernel", "wait_signal_kernel"),
        ),
    ),
    ("oneccl", ("oneccl",)),
    ("hccl", ("hccl", "hcom_")),
)
"""Library -> words anywhere in its kernels' names, in any case. The first that matches decides."""
COLLECTIVE = "collective"
"""Class of a kernel that has the name of a collective and of no known library."""
COLLECTIVES = ("allreduce", "allgather", "reducescatter", "alltoall", "all2all", "sendrecv")
"""Words of a kernel's own name without underscores."""
GENERATED = re.compile(r"triton_([a-z]+_)?fused_")
"""Begin of the names that torch.compile makes."""
LIKE_NCCL = re.compile(r"[a-z]{2,3}cl(dev|sym)?k?(dev)?kernel")
"""Own names of kernels of libraries that GPU vendors made after NCCL."""
WITHIN_A_GPU = re.compile(r"(block|warp|thread|cta|cluster|grid|wave)(all|reduce)")
"""Reductions among the threads of one GPU."""
LAYOUT = "get_dispatch_layout"
"""DeepEP's count of the tokens for each rank, which sends nothing."""

LENGTH = re.compile(r"\d{1,4}")
"""Length of the identifier that follows, in a mangled name."""
NO_IDENTIFIER = re.compile(r"L[a-z]n?\d+E|[ST][0-9A-Z]*_")
"""A number, or a reference to what a mangled name has before."""

GEMM_WORDS = ("gemm", "gemv", "matmul", "nvjet", "cijk_", "triton_tem_fused_mm", "triton_tem_fused_addmm")
FUSED_WORDS = (
    *("allgather", "all_gather", "allreduce", "all_reduce", "reducescatter", "reduce_scatter", "alltoall"),
    *("all_to_all", "ag_gemm", "gemm_rs", "gemm_ar", "gemm_a2a", "a2a_gemm"),
)
"""Together with a word of GEMM_WORDS in one name: a fused product, as in FLUX, Triton-distributed and cuBLASMp."""


def plain_name(name: str) -> str:
    """Return a name in lower case without those of libraries that say nothing about a kernel's purpose."""
    return readable_name(name).lower().replace("fbgemm", "").replace("flashinfer", "")


def readable_name(name: str) -> str:
    """Return the identifiers of a mangled C++ name, as in `a::kernel<b::type>`; any other name as it is.

    What stands between the identifiers, such as `_NSA_`, means types and is no word. The rules are those of the Itanium
    C++ ABI, section 5.1.
    """
    if not name.startswith("_Z"):
        return name
    own: list[str] = []
    arguments: list[str] = []
    found, at = own, len("_Z")
    while at < len(name):
        length, other = LENGTH.match(name, at), NO_IDENTIFIER.match(name, at)
        if length is not None:
            at = length.end() + int(length[0])
            found.append(name[length.end() : at])
        elif other is not None:
            at = other.end()
        else:
            found = arguments if name[at] == "I" else found
            at += 1
    return "::".join(own) + (f"<{'::'.join(arguments)}>" if arguments else "") or name


def is_fused_product(name: str) -> bool:
    """Return whether a kernel is a matrix product that also communicates."""
    plain = plain_name(name)
    return any(word in plain for word in GEMM_WORDS) and any(word in plain for word in FUSED_WORDS)


def communication_library(name: str) -> str | None:
    """Return the library of a communication kernel, COLLECTIVE for an unknown one; None for any other kernel."""
    plain = plain_name(name)
    if is_fused_product(name) or GENERATED.match(plain) or LAYOUT in plain:
        return None
    known = next((library for library, words in LIBRARIES if any(map(plain.__contains__, words))), None)
    if known is not None:
        return known
    own = bare_name(plain).replace("_", "")
    is_named = any(word in own for word in COLLECTIVES) and not WITHIN_A_GPU.search(own)
    return COLLECTIVE if is_named or LIKE_NCCL.match(own) else None


def bare_name(name: str) -> str:
    """Return the name of a kernel without its return type, template arguments and parameters."""
    plain = readable_name(name).removeprefix("void ").replace("(anonymous namespace)::", "")
    return plain.partition("<")[0].partition("(")[0] or name
