"""Causality of attention whose operators do not state it: of products around a softmax, and of kernels with a mask.

The values decide: attention is causal if no query sees a later key. Packed documents are causal too, and see less. The
values are looked at in counted steps only, in one head of each tensor. On a GPU the answer arrives later, without a
wait.
"""

import sys
from typing import Any

from traincope.events import Work

SOFTMAXES = ("_softmax", "_safe_softmax")
"""Operators of `aten` whose argument shows which keys a query sees."""

BATCHED = {
    "bmm": ("self", "mat2"),
    "bmm.out": ("self", "mat2"),
    "baddbmm": ("batch1", "batch2"),
    "baddbmm.out": ("batch1", "batch2"),
    "baddbmm_": ("batch1", "batch2"),
}
"""Operator of a batched product -> its factors."""

MASKS = ("attn_mask", "attn_bias")
"""Arguments of fused attention that are added to the scores."""

HIDDEN = -5e3
"""Scores below have no weight. Libraries lower them by 10,000, to the lowest number or to -inf."""

PART = 1 << 22
"""Elements of a mask that are counted at once."""

HALVED = {Work.MATMUL: Work.CAUSAL_PRODUCTS, Work.ATTENTION: Work.MASKED_ATTENTION}
"""Kind of work -> what it is if its attention is causal."""

Square = tuple[int, int]
"""Shape of the probabilities of one attention: number of matrices, and their rows = columns."""


def square_of(operator: str, call: dict[str, Any]) -> Square | None:
    """Return the square matrices in a batched product (B, M, K) x (B, K, N): a factor, or the result. None without."""
    if operator not in BATCHED:
        return None
    a, b = (call[name] for name in BATCHED[operator])
    if len(a.shape) != 3 or len(b.shape) != 3:
        return None
    rows, inner, columns = int(a.shape[1]), int(a.shape[2]), int(b.shape[2])
    side = rows if rows in (inner, columns) else inner if inner == columns else None
    return None if side is None else (int(a.shape[0]), side)


class CausalMasks:
    """Masks of one step's attention."""

    def __init__(self) -> None:
        self._shares: dict[Square, list[Any]] = {}
        """Answers, each a number or a tensor of one."""
        self._arrivals: list[Any] = []

    @property
    def arrived(self) -> bool:
        """Return whether all answers have left the device."""
        return all(event.query() for event in self._arrivals)

    def shares(self) -> dict[Square, float]:
        """Return the shapes whose attention was causal each time, with their squared lengths of documents as a share of
        the square: 1 without documents.
        """
        answers = {square: [float(share) for share in shares] for square, shares in self._shares.items()}
        return {square: sum(each) / len(each) for square, each in answers.items() if min(each) >= 0}

    def saw_scores(self, scores: Any, dim: int) -> None:
        """Note the scores (..., queries, keys) before a softmax over `dim`."""
        shape = scores.shape
        if len(shape) > 2 and dim in (-1, len(shape) - 1) and shape[-1] == shape[-2] > 1:
            self._note((scores.numel() // int(shape[-1]) ** 2, int(shape[-1])), scores)

    def saw_attention(self, call: dict[str, Any]) -> Square | None:
        """Note the mask of fused attention on queries (B, H, L, D). Returns its shape; None without a mask."""
        mask = next((call[name] for name in MASKS if call.get(name) is not None), None)
        query = call["query"]
        if mask is None or len(mask.shape) < 2 or not query.shape[2] == mask.shape[-1] == mask.shape[-2] > 1:
            return None
        square = int(query.shape[0] * query.shape[1]), int(query.shape[2])
        self._note(square, mask)
        return square

    def _note(self, square: Square, scores: Any) -> None:
        """Note one head: its share of the square if it is causal, otherwise -1.

        L (L + 1) / 2 pairs of a document are visible, so its L^2 is twice the pairs, less L.
        """
        import torch

        heads = scores[:, 0] if len(scores.shape) > 3 else scores.reshape(-1, *scores.shape[-2:])[:1]
        visible = heads if heads.dtype is torch.bool else heads.gt(HIDDEN)
        elements = max(1, visible.numel())
        rows = max(1, PART * square[1] // elements)  # a sum copies its part to integers of 8 bytes
        pairs = sum(part.sum() for part in visible.split(rows, dim=-2))
        share = 2 * pairs.double() / elements - 1 / square[1]
        answer = torch.where(visible.triu(1).any(), -1.0, share)
        if answer.is_cuda:
            memory = torch.empty((), dtype=answer.dtype, device="cpu", pin_memory=True)
            answer = memory.copy_(answer, non_blocking=True)
            arrival = torch.cuda.Event()
            arrival.record()
            self._arrivals.append(arrival)
        self._shares.setdefault(square, []).append(answer)


def is_capturing() -> bool:
    """Return whether a CUDA graph is being captured: a copy to the host would break it."""
    torch = sys.modules["torch"]
    return bool(torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())
