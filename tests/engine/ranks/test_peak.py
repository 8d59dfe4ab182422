import torch
import torch.distributed as dist

from tests.distributed.ranks.pool import Pool
from traincope.engine.ranks.peak import matmul_peak


def measured() -> tuple[float, float]:
    """The peak that this rank received, and a random number drawn after it."""
    torch.manual_seed(0)
    rate = matmul_peak(torch.float32, device=torch.device("cpu"))
    return rate, torch.rand(()).item()


def test_all_ranks_get_the_same_peak_and_their_random_numbers_do_not_change(two_ranks: Pool) -> None:
    (rate, drawn), (other, _) = two_ranks.run(measured)
    assert rate == other > 1e6
    torch.manual_seed(0)
    assert drawn == torch.rand(()).item()


def test_without_a_process_group_the_peak_is_that_of_this_process() -> None:
    assert not dist.is_initialized()
    assert matmul_peak(torch.float32, device=torch.device("cpu")) > 1e6
