"""Shapes of published models."""

from traincope.plan.model.transformer import Experts, Transformer


def gpt(layers: int, hidden: int, heads: int, *, sequence: int = 2048) -> Transformer:
    """Megatron's models in Narayanan et al. 2021 and Korthikanti et al. 2022."""
    return Transformer(layers=layers, hidden=hidden, heads=heads, vocabulary=51200, sequence=sequence, biases=True)


PALM = Transformer(
    layers=118, hidden=18432, heads=48, kv_heads=1, head_dim=256, gated_mlp=True, vocabulary=256_000, sequence=2048
)
LLAMA3_405B = Transformer(
    layers=126,
    hidden=16384,
    heads=128,
    kv_heads=8,
    ffn=53248,
    gated_mlp=True,
    untied=True,
    vocabulary=128_256,
    sequence=8192,
)
MIXTRAL = Transformer(
    layers=32,
    hidden=4096,
    heads=32,
    kv_heads=8,
    ffn=14336,
    gated_mlp=True,
    untied=True,
    vocabulary=32_000,
    sequence=32_768,
    experts=Experts(count=8, top_k=2, ffn=14336),
)
DEEPSEEK_MOE = Transformer(
    layers=28,
    hidden=2048,
    heads=16,
    ffn=10944,
    gated_mlp=True,
    untied=True,
    vocabulary=102_400,
    sequence=4096,
    experts=Experts(count=64, top_k=6, ffn=1408, shared=2, dense_layers=1),
)


def mpt(layers: int, hidden: int, heads: int, vocabulary: int, *, sequence: int) -> Transformer:
    """MPT: GPT with a tied embedding and ALiBi."""
    return Transformer(layers=layers, hidden=hidden, heads=heads, vocabulary=vocabulary, sequence=sequence, biases=True)


def llama2(name: str, *, sequence: int) -> Transformer:
    """Llama 2 (Touvron et al. 2023, arXiv:2307.09288), and Code Llama 34B of the same family."""
    layers, hidden, heads, kv_heads, ffn = {
        "7b": (32, 4096, 32, 32, 11008),
        "13b": (40, 5120, 40, 40, 13824),
        "34b": (48, 8192, 64, 8, 22016),
        "70b": (80, 8192, 64, 8, 28672),
    }[name]
    return Transformer(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        ffn=ffn,
        gated_mlp=True,
        untied=True,
        vocabulary=32_000,
        sequence=sequence,
    )


def llama3(name: str, *, sequence: int) -> Transformer:
    """Llama 3 (Llama Team 2024, arXiv:2407.21783, table 3)."""
    layers, hidden, heads, ffn = {"8b": (32, 4096, 32, 14336), "70b": (80, 8192, 64, 28672)}[name]
    return Transformer(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=8,
        ffn=ffn,
        gated_mlp=True,
        untied=True,
        vocabulary=128_256,
        sequence=sequence,
    )


def nemotron4(layers: int, hidden: int, heads: int) -> Transformer:
    """Nemotron-4 (Parmar et al. 2024, arXiv:2402.16819, table 1; Nvidia 2024, arXiv:2406.11704, table 1)."""
    return Transformer(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=8,
        untied=True,
        vocabulary=256_000,
        sequence=4096,
    )
