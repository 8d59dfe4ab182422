"""The products of experts, each on its own rows: one grouped product, in the type of its factors or in a narrow one."""

from torch import Tensor, nn
from torch.nn import functional


class GroupedProduct(nn.Module):
    """Rows (N, K) x a matrix of each expert (E, K, M) -> (N, M). It has no weights of its own."""

    def forward(self, rows: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
        """`ends` (E,) are the ends of the experts' rows, int32."""
        return functional.grouped_mm(rows, weight, offs=ends)
