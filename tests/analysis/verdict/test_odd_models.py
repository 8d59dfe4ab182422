"""Ranks whose model is not that of most ranks."""

import pytest

from traincope.analysis.verdict.rank_failures import odd_models

SHAPE = "[{}]: params[2] in this process with sizes [64, 32] appears not to match sizes of the same param in process 0."


def counted(*of_ranks: int) -> dict[int, str]:
    """Messages of torch, by the numbers of parameters of the ranks."""
    found = {}
    for rank, own in enumerate(of_ranks):
        other = next(at for at, count in enumerate(of_ranks) if count != own)
        found[rank] = (
            f"DDP expects same model across all ranks, but Rank {rank} has {own} params, while rank {other} has "
            f"inconsistent {of_ranks[other]} params."
        )
    return found


@pytest.mark.parametrize(
    ("counts", "odd"),
    [((6, 6, 2), (2,)), ((2, 6, 6), (0,)), ((6, 2, 6, 4, 6), (1, 3)), ((6, 2), ()), ((6, 6, 2, 2), ())],
)
def test_the_model_of_most_ranks_is_the_usual_one(counts: tuple[int, ...], odd: tuple[int, ...]) -> None:
    assert odd_models(counted(*counts), len(counts)) == odd


def test_what_some_ranks_did_not_say_names_no_rank() -> None:
    """A rank raised nothing, the numbers are those of a smaller group, or the error is another one."""
    assert odd_models(counted(6, 6, 2), 4) == ()
    assert odd_models({rank + 4: message for rank, message in counted(6, 6, 2).items()}, 3) == ()
    assert odd_models({0: "bad sample", 1: "bad sample"}, 2) == ()


def test_rank_0_is_the_odd_one_if_all_others_differ_from_it_alike() -> None:
    raised = {rank: SHAPE.format(rank) for rank in (1, 2)}
    assert odd_models(raised, 3) == (0,)
    assert odd_models(raised, 4) == ()
    assert odd_models({1: raised[1]}, 2) == ()
    assert odd_models({**raised, 2: raised[2].replace("params[2]", "params[5]")}, 3) == ()
