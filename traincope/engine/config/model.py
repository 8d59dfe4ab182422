"""`[model]`: the GPT that is trained."""

from dataclasses import dataclass

from traincope.engine.checks import divides, positive, require

VOCABULARY = 257
"""The 256 bytes and the token that ends a document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """`[model]`: a GPT with RMSNorm, rotary positions, grouped-query attention and SwiGLU."""

    layers: int = 8
    """Transformer blocks."""
    hidden: int = 256
    """Width of the residual stream."""
    heads: int = 8
    """Query heads; each is hidden / heads wide."""
    kv_heads: int = 4
    """Key and value heads, each shared by heads / kv_heads query heads."""
    ffn: int = 704
    """Inner width of the SwiGLU feed-forward."""
    sequence: int = 128
    """Tokens of one training sequence."""
    vocabulary: int = VOCABULARY
    """Size of the embedding; text needs 257 (bytes and end of document), a token file what it holds."""
    rope_theta: float = 10_000.0
    """Base of the rotary frequencies."""

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "heads", "kv_heads", "ffn", "sequence", "vocabulary"):
            positive(getattr(self, name), key=f"model.{name}")
        positive(self.rope_theta, key="model.rope_theta")
        divides(self.heads, self.hidden, divisor="model.heads", dividend="model.hidden")
        divides(self.kv_heads, self.heads, divisor="model.kv_heads", dividend="model.heads")
        require(
            self.hidden // self.heads % 2 == 0,
            f"model.hidden / model.heads = {self.hidden // self.heads} is odd; "
            "rotary positions turn pairs of channels, so make it even",
        )
