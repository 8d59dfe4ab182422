"""The table `[model]`: the GPT to train."""

from dataclasses import dataclass

from traincope.engine.config.checks import require, require_divisor, require_positive

VOCABULARY = 257
"""The 256 bytes and the end-of-document token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A GPT with RMSNorm, rotary positions, grouped-query attention and SwiGLU."""

    layers: int = 8
    """Transformer blocks."""
    hidden: int = 256
    """Width of the residual stream."""
    heads: int = 8
    """Query heads, each hidden / heads wide."""
    kv_heads: int = 4
    """Key and value heads. Each is shared by heads / kv_heads query heads."""
    ffn: int = 704
    """Inner width of the SwiGLU feed-forward."""
    sequence: int = 128
    """Tokens of each training sequence."""
    vocabulary: int = VOCABULARY
    """Rows of the embedding. Text needs 257 (bytes and end of document); a token file needs more than its largest
    token."""
    rope_theta: float = 10_000.0
    """Base of the rotary frequencies."""
    dropout: float = 0.0
    """Share of the numbers that training sets to zero in what attention and feed-forward add to the residual stream."""

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "heads", "kv_heads", "ffn", "sequence", "vocabulary"):
            require_positive(getattr(self, name), key=f"model.{name}")
        require_positive(self.rope_theta, key="model.rope_theta")
        require(0.0 <= self.dropout < 1.0, f"model.dropout is {self.dropout}; it must be at least 0 and below 1")
        require_divisor(self.heads, self.hidden, divisor="model.heads", dividend="model.hidden")
        require_divisor(self.kv_heads, self.heads, divisor="model.kv_heads", dividend="model.heads")
        require(
            self.hidden // self.heads % 2 == 0,
            f"model.hidden / model.heads = {self.hidden // self.heads} is odd; "
            "rotary positions rotate pairs of channels, so make it even",
        )
