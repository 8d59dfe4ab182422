"""Shapes of published models."""

from traincope.plan.model.transformer import Experts, Transformer


def gpt(layers: int, hidden: int, heads: int) -> Transformer:
    """Megatron's models in Narayanan et al. 2021 and Korthikanti et al. 2022."""
    return Transformer(layers=layers, hidden=hidden, heads=heads, vocabulary=51200, sequence=2048)


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
