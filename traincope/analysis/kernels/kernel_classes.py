"""Classes of kernels by name: a versioned table, because a trace contains no other information about their purpose.

The first rule with a word that occurs in the name, in any case, decides. Communication comes first, because its
kernels are templates of types whose names contain other words (`timeline.device.communication_kernels`). Attention
comes before matrix products, because it consists of them. A kernel without a rule is `unknown`; the report shows the
share of such kernels.
"""

from dataclasses import dataclass
from enum import StrEnum

from traincope.timeline.device.communication_kernels import (
    GEMM_WORDS,
    communication_library,
    is_fused_product,
    plain_name,
)

VERSION = 4
"""Version of the tables. It changes when any name gets another class."""

UNKNOWN = "unknown"
MEMORY = "memory"
GEMM = "gemm"
ATTENTION = "attention"


class Family(StrEnum):
    COMMUNICATION = "communication"
    COMPUTE = "compute"
    HOST = "host"
    """The host's work around its operators."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Rule:
    name: str
    family: Family
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KernelClass:
    name: str
    family: Family
    fused: bool = False
    """A matrix product that also communicates. It counts as compute."""


KERNELS = (
    Rule(
        ATTENTION,
        Family.COMPUTE,
        (
            "flash",
            "fmha",
            "attention",
            "sdpa",
            "attn_fwd",
            "attn_bwd",
            "bwd_kernel_dk_dv",
            "bwd_kernel_dq",
            "fused_attn",
            "prefillwith",
            "decodewith",
            *("mla_fwd", "mla_bwd", "mla::", "nsa_fwd", "nsa_bwd", "retention_fwd", "retention_bwd"),
        ),
    ),
    Rule(
        "state_space",
        Family.COMPUTE,
        (
            *("selective_scan", "chunk_scan", "chunk_state", "state_passing", "chunk_cumsum", "bmm_chunk", "mamba"),
            *(
                "chunk_fwd",
                "chunk_bwd",
                "chunk_gated",
                "chunk_gla",
                "chunk_scaled_dot",
                "delta_rule",
                "fused_recurrent",
            ),
            *("causal_conv1d", "solve_tril", "recompute_w_u", "wkv"),
        ),
    ),
    Rule("embedding", Family.COMPUTE, ("embedding", "pooled_embs", "bounds_check_indices")),
    Rule("elementwise", Family.COMPUTE, ("hadamard",)),  # has the word adam
    Rule(
        "optimizer",
        Family.COMPUTE,
        ("multi_tensor_apply", "adam", "fused_sgd", "fusedsgd", "muon", "koptimizer", "fused_lamb", "newton_schulz"),
    ),
    Rule(
        "norm",
        Family.COMPUTE,
        (
            *("layer_norm", "layernorm", "rms_norm", "rmsnorm", "batch_norm", "batchnorm", "group_norm", "groupnorm"),
            *("bn_fw", "bn_bw", "gammabeta", "rowwisemoments", "l2norm", "l2_norm"),
        ),
    ),
    Rule(
        GEMM,
        Family.COMPUTE,
        (
            *GEMM_WORDS,
            *("cutlass", "cublas", "xmma", "splitk", "triton_mm", "triton_bmm", "triton_tem_fused_bmm", "_ck_"),
            *("convolution", "conv2d", "conv1d", "conv3d", "winograd", "wgrad", "dgrad", "fprop", "scudnn", "igemm"),
            *("convolve", "conv_fwd", "conv_bwd", "conv_wrw", "conv_depthwise", "naive_conv", "gen_conv", "asmconv"),
            *("fused_moe_kernel", "grouped_mm", "group_mm", "marlin"),
        ),
    ),
    Rule(
        MEMORY,
        Family.COMPUTE,
        (
            *("memcpy", "memset", "copy", "catarray", "transpose", "nchwtonhwc", "nhwctonchw", "fillfunctor", "im2col"),
            *("subtensorop", "triton_tem_fused_cat", "chunk_cat", "roll_cuda", "flip_cuda"),
        ),
    ),
    Rule(
        "indexing",
        Family.COMPUTE,
        (
            *("index", "indices", "gather", "scatter", "sort", "scan", "unique", "permute", "bucketize", "topk"),
            *("nonzero", "histogram", "moe_align", "cumsum"),
        ),
    ),
    Rule(
        "elementwise",
        Family.COMPUTE,
        (
            *("elementwise", "reduce", "softmax", "dropout", "loss", "rotary", "rope", "pool", "functor", "quantize"),
            *("triton_poi", "triton_red", "triton_per", "triton_for_", "triton__0d", "distribution", "arange"),
            *("cross_entropy", "swiglu", "geglu", "silu", "gelu", "act_and_mul", "logsumexp", "triu_tril", "_fusion"),
            *("dot_kernel", "axpy", "nrm2"),
        ),
    ),
)

OPERATORS = (
    Rule(
        "c10d",
        Family.COMMUNICATION,
        ("c10d", "record_param_comms", "gloo:", "nccl:", "mpi:", "ucc:", "torch_ccl", "oneccl"),
    ),
    Rule("framework", Family.HOST, ("autograd::", "backward0", "backward1", "functionbackward$", "fsdp::")),
    Rule(ATTENTION, Family.COMPUTE, ("attention",)),
    Rule("optimizer", Family.COMPUTE, ("optimizer.", "_fused_adam", "_fused_sgd", "_fused_adagrad", "_foreach_")),
    Rule("norm", Family.COMPUTE, ("layer_norm", "rms_norm", "batch_norm", "group_norm", "instance_norm")),
    Rule(
        GEMM,
        Family.COMPUTE,
        (
            *("aten::mm$", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::matmul", "aten::linear", "aten::mv$"),
            *("aten::dot$", "aten::einsum", "aten::addmv", "_scaled_mm", "_grouped_mm", "convolution", "aten::conv"),
            *("mkldnn", "onednn", "mkl_linear"),
        ),
    ),
    Rule("embedding", Family.COMPUTE, ("embedding",)),
    Rule(
        MEMORY,
        Family.COMPUTE,
        (
            *("aten::copy_", "aten::_to_copy", "aten::to$", "aten::clone", "aten::contiguous", "aten::cat$"),
            *("aten::stack", "aten::zero", "aten::fill_", "aten::ones", "aten::empty", "aten::new_", "aten::full"),
            *("aten::resize_", "aten::view", "aten::reshape", "aten::_reshape_alias", "aten::t$", "aten::transpose"),
            *("aten::as_strided", "aten::expand", "aten::permute", "aten::slice", "aten::select", "aten::narrow"),
            *("aten::split", "aten::unbind", "aten::detach", "detach", "aten::unsqueeze", "aten::squeeze"),
            *("aten::chunk", "aten::alias", "aten::_unsafe_view", "aten::set_", "aten::pin_memory"),
        ),
    ),
    Rule("indexing", Family.COMPUTE, ("index", "gather", "scatter", "aten::sort", "topk", "nonzero", "searchsorted")),
    Rule(
        "elementwise",
        Family.COMPUTE,
        (
            *("aten::add", "aten::sub", "aten::rsub", "aten::mul", "aten::div", "aten::neg", "aten::pow", "aten::exp"),
            *("aten::log", "aten::sqrt", "aten::rsqrt", "aten::reciprocal", "aten::abs", "aten::clamp", "aten::lerp"),
            *(
                "aten::sum",
                "aten::mean",
                "aten::max",
                "aten::min",
                "aten::amax",
                "aten::any",
                "aten::all",
                "aten::norm",
            ),
            *("aten::linalg_vector_norm", "aten::cos", "aten::sin", "aten::cumsum", "aten::arange", "aten::tri"),
            *("aten::eq", "aten::ne", "aten::gt", "aten::lt", "aten::ge", "aten::le", "aten::where", "aten::bitwise"),
            *("aten::masked_fill", "softmax", "gelu", "silu", "relu", "sigmoid", "tanh", "nll_loss", "cross_entropy"),
            *("dropout", "bernoulli", "aten::uniform", "aten::normal", "aten::random", "aten::item", "_local_scalar"),
        ),
    ),
)
"""Rules for operators on the host, whose time is used if a trace has no kernels. `$` is the end of a name."""


def kernel_class(name: str) -> KernelClass:
    """Classify a kernel of a device."""
    if is_fused_product(name):
        return KernelClass(GEMM, Family.COMPUTE, fused=True)
    library = communication_library(name)
    return _first(plain_name(name), KERNELS) if library is None else KernelClass(library, Family.COMMUNICATION)


def operator_class(name: str) -> KernelClass:
    """Classify an operator of the host."""
    return _first(f"{name.lower()}$", OPERATORS)


def _has(text: str, words: tuple[str, ...]) -> bool:
    return any(word in text for word in words)


def _first(text: str, rules: tuple[Rule, ...]) -> KernelClass:
    rule = next((rule for rule in rules if _has(text, rule.words)), None)
    return KernelClass(UNKNOWN, Family.UNKNOWN) if rule is None else KernelClass(rule.name, rule.family)
