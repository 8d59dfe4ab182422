"""Shapes of a transformer, and the number of weights that they give."""

from collections import Counter
from dataclasses import dataclass

from traincope.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Feed-forwards of which a token takes a few. Raises UsageError for impossible sizes."""

    count: int
    """Routed experts of a block."""
    top_k: int
    """Routed experts that a token takes."""
    ffn: int
    """Inner width of one expert."""
    shared: int = 0
    """Shared experts, which each token takes."""
    shared_ffn: int | None = None
    """Inner width of one shared expert. None: that of the routed experts."""
    dense_layers: int = 0
    """First blocks, with an ordinary feed-forward instead."""
    pattern: tuple[bool, ...] | None = None
    """One entry per block, True if it has experts; None: all blocks after the dense ones."""

    def __post_init__(self) -> None:
        for name, minimum in (("count", 1), ("top_k", 1), ("ffn", 1), ("shared", 0), ("dense_layers", 0)):
            if getattr(self, name) < minimum:
                raise UsageError(f"experts: {name} is {getattr(self, name)}; it must be at least {minimum}")
        if self.shared_ffn is not None and self.shared_ffn < 1:
            raise UsageError(f"experts: shared_ffn is {self.shared_ffn}; it must be at least 1")
        if self.top_k > self.count:
            raise UsageError(f"a token cannot take top_k = {self.top_k} of {self.count} experts; take fewer")

    @property
    def shared_width(self) -> int:
        """Inner width of all shared experts together."""
        return self.shared * (self.shared_ffn or self.ffn)


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """Multi-latent attention: queries, and keys with values, come from narrow vectors. Raises UsageError for sizes
    below 1.

    DeepSeek-AI 2024, DeepSeek-V2, arXiv:2405.04434, section 2.1 and appendix C.
    """

    kv_rank: int
    """Width of the vector that keys and values come from."""
    rope: int
    """Width of the part of a key that holds the position. All heads share it."""
    value_dim: int
    """Width of one head's values."""
    q_rank: int | None = None
    """Width of the vector that queries come from; None: the residual stream itself."""

    @property
    def width(self) -> int:
        """Width of the vectors that queries, keys and values come from, where they are narrow."""
        return self.kv_rank + (self.q_rank or 0)

    def __post_init__(self) -> None:
        for name in ("kv_rank", "rope", "value_dim", "q_rank"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"latent attention: {name} is {value}; it must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformer:
    """Shapes of the model. Raises UsageError for sizes below 1 and heads that do not divide."""

    layers: int
    hidden: int
    heads: int
    vocabulary: int
    sequence: int
    kv_heads: int | None = None
    """None: as many as heads."""
    head_dim: int | None = None
    """Width of one head; None: hidden / heads."""
    ffn: int | None = None
    """Inner width of the feed-forward; None: 4 x hidden."""
    gated_mlp: bool = False
    """SwiGLU and similar gated feed-forwards multiply three matrices, not two."""
    untied: bool = False
    """The output has a matrix of its own, not the embedding's."""
    positions: int = 0
    """Rows of a learned matrix of positions."""
    biases: bool = False
    """Products of blocks add biases, and kernels of their own sum the biases' gradients."""
    experts: Experts | None = None
    latent: Latent | None = None
    windows: tuple[int | None, ...] | None = None
    """One entry per block, the most tokens that a query reaches, itself included, or None without a limit; None: no
    block has a limit."""

    def __post_init__(self) -> None:
        if self.positions < 0:
            raise UsageError(f"positions is {self.positions}; it must be at least 0")
        for name in ("layers", "hidden", "heads", "vocabulary", "sequence", "kv_heads", "head_dim", "ffn"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name} is {value}; it must be at least 1")
        kv_heads = self.kv_heads or self.heads
        if (self.head_dim is None and self.hidden % self.heads) or self.heads % kv_heads:
            raise UsageError(
                f"hidden = {self.hidden}, heads = {self.heads} and kv_heads = {kv_heads} must each be a multiple "
                "of the next; change one of them"
            )
        pattern = None if self.experts is None else self.experts.pattern
        if pattern is not None and len(pattern) != self.layers:
            raise UsageError(f"the pattern of experts is of {len(pattern)} blocks, and the model has {self.layers}")
        if self.windows is not None and len(self.windows) != self.layers:
            raise UsageError(f"the windows are of {len(self.windows)} blocks, and the model has {self.layers}")
        if any(window is not None and window < 1 for window in self.windows or ()):
            raise UsageError("a window of attention is below 1 token; it must be at least 1")
        if self.experts is not None and self.experts.dense_layers > self.layers:
            raise UsageError(
                f"dense_layers is {self.experts.dense_layers}; it must be at most the number of layers, {self.layers}"
            )

    @property
    def query_width(self) -> int:
        """Width of all query heads together."""
        return self.heads * (self.head_dim or self.hidden // self.heads)

    @property
    def kv_width(self) -> int:
        """Width of all key heads together, and of all value heads, without a latent attention."""
        return self.query_width // self.heads * (self.kv_heads or self.heads)

    @property
    def key_width(self) -> int:
        """Width of all keys that attention reads: a latent one makes keys for each head."""
        return self.kv_width if self.latent is None else self.query_width

    @property
    def value_width(self) -> int:
        """Width of all values that attention reads."""
        return self.kv_width if self.latent is None else self.mixed_width

    @property
    def mixed_width(self) -> int:
        """Width of the values that all heads mix."""
        return self.query_width if self.latent is None else self.heads * self.latent.value_dim

    @property
    def squared_reaches(self) -> int:
        """Sum over all blocks of twice the pairs of tokens of a sequence that causal attention joins."""
        return sum(self.squared_reach(window) * count for window, count in self.num_by_window().items())

    def squared_reach(self, window: int | None) -> int:
        """Twice the pairs of tokens of a sequence that causal attention joins in one block.

        That is s^2 for the triangle below the diagonal, less the triangle of (s - w)^2 that a window of w tokens leaves
        out.
        """
        beyond = 0 if window is None else max(self.sequence - window, 0)
        return self.sequence**2 - beyond**2

    def num_by_window(self) -> dict[int | None, int]:
        """Window -> number of blocks with it."""
        return {None: self.layers} if self.windows is None else dict(Counter(self.windows))

    @property
    def ffn_width(self) -> int:
        return self.ffn or 4 * self.hidden

    @property
    def expert_layers(self) -> int:
        """Blocks whose feed-forward is routed."""
        return self.num_routed(range(self.layers))

    def num_routed(self, blocks: range) -> int:
        """Number of these consecutive blocks that have experts."""
        if self.experts is not None and self.experts.pattern is not None:
            return sum(self.experts.pattern[block] for block in blocks)
        return 0 if self.experts is None else len(range(max(blocks.start, self.experts.dense_layers), blocks.stop))

    @property
    def attention_weights(self) -> int:
        """Elements of one block's matrices around its attention: four without a latent one."""
        if self.latent is None:
            return 2 * self.hidden * (self.query_width + self.kv_width)
        latent, output = self.latent, self.hidden * self.mixed_width
        queries = self.query_width * (self.hidden if latent.q_rank is None else latent.q_rank)
        return queries + latent.kv_rank * self.made_width + self.whole_weights + output

    @property
    def made_width(self) -> int:
        """Width of the keys and values of all heads that a latent attention makes from its narrow vector."""
        return 0 if self.latent is None else self.query_width - self.heads * self.latent.rope + self.mixed_width

    @property
    def whole_weights(self) -> int:
        """Elements of one block's matrices that tp does not split: those that make a latent attention's narrow vectors.

        Megatron-LM's ranks of tp hold them whole (megatron/core/transformer/multi_latent_attention.py).
        """
        return 0 if self.latent is None else self.hidden * (self.latent.width + self.latent.rope)

    @property
    def block_weights(self) -> int:
        """Elements of the matrices of a block without experts."""
        return self.attention_weights + self._feed_forward(self.ffn_width)

    @property
    def expert_weights(self) -> int:
        """Elements of one routed expert's matrices."""
        return 0 if self.experts is None else self._feed_forward(self.experts.ffn)

    @property
    def routed_weights(self) -> int:
        """Elements of one block's routed experts, which expert parallelism divides."""
        return 0 if self.experts is None else self.experts.count * self.expert_weights

    @property
    def unrouted_weights(self) -> int:
        """Elements of the other matrices of a block with experts: attention, router, shared experts."""
        if self.experts is None:
            return 0
        router = self.hidden * self.experts.count
        return self.attention_weights + router + self._feed_forward(self.experts.shared_width)

    @property
    def embedding_weights(self) -> int:
        return self.hidden * self.vocabulary

    @property
    def position_weights(self) -> int:
        return self.hidden * self.positions

    @property
    def parameters(self) -> int:
        """Elements of all matrices; a tied embedding counts once. Norms and biases are excluded."""
        return self._blocks(self.routed_weights) + self._end_weights

    @property
    def active_parameters(self) -> int:
        """Elements that a token passes: as `parameters`, but only top_k of the experts."""
        return self.active_block_weights + self._end_weights

    @property
    def _end_weights(self) -> int:
        return (2 if self.untied else 1) * self.embedding_weights + self.position_weights

    @property
    def active_block_weights(self) -> int:
        """Elements in all blocks that a token is multiplied with."""
        return self._blocks(0 if self.experts is None else self.experts.top_k * self.expert_weights)

    def _blocks(self, routed: int) -> int:
        """Elements of all blocks, with `routed` elements of routed experts in each block that has experts."""
        dense = (self.layers - self.expert_layers) * self.block_weights
        return dense + self.expert_layers * (self.unrouted_weights + routed)

    def _feed_forward(self, width: int) -> int:
        return (3 if self.gated_mlp else 2) * self.hidden * width
