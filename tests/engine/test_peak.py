import torch
import torch.distributed as dist

from tests.distributed.pool import Pool
from traincope.engine.peak import matmul_peak


def measured() -> tuple[float, float]:
    """The peak that all ranks were told, and a random number drawn after it."""
    torch.manual_seed(0)
    found = matmul_peak(torch.float32, device=torch.device("cpu"))
    return found, torch.rand(()).item()


def test_all_ranks_are_told_one_peak_and_draw_the_same_numbers_as_without(two_ranks: Pool) -> None:
    (one, drawn), (other, _) = two_ranks.run(measured)
    assert one == other > 1e6
    torch.manual_seed(0)
    assert drawn == torch.rand(()).item()


def test_without_a_process_group_it_is_ones_own() -> None:
    assert not dist.is_initialized()
    assert matmul_peak(torch.float32, device=torch.device("cpu")) > 1e6
