"""The router: choice of experts, weights of the choices, and the balance loss."""

import pytest
import torch

from traincope.engine.config import ExpertsConfig
from traincope.engine.model.router import Router, balance_loss


def router(weight: torch.Tensor, **settings: object) -> Router:
    """Router whose scores are the products of a token with the rows of `weight`."""
    config = ExpertsConfig(**({"number": len(weight), "balance": 0.0} | settings))  # type: ignore[arg-type]
    module = Router(config, hidden=weight.shape[1])
    module.weight.data = weight
    return module


def logarithms(*rows: list[float]) -> torch.Tensor:
    """One sequence of tokens that get these probabilities if the weights are the unit matrix."""
    return torch.tensor([rows]).log()


def test_the_most_probable_experts_are_chosen_and_weighted_by_their_share() -> None:
    routing = router(torch.eye(4), top_k=2)(logarithms([0.1, 0.6, 0.1, 0.2], [0.5, 0.1, 0.3, 0.1]))
    assert routing.chosen.tolist() == [[[1, 3], [0, 2]]]
    torch.testing.assert_close(routing.weights, torch.tensor([[[0.75, 0.25], [0.625, 0.375]]]))


def test_a_single_expert_is_weighted_by_its_probability_and_gives_the_router_a_gradient() -> None:
    """Gradient by hand.

    With x = (log 3, 0) the probabilities are p = (3/4, 1/4); d p0 / d score is p0 (1 - p0), -p0 p1, times x.
    """
    single = router(torch.eye(2), top_k=1)
    routing = single(logarithms([3.0, 1.0]))
    routing.weights.sum().backward()
    torch.testing.assert_close(routing.weights, torch.tensor([[[0.75]]]))
    slope = 3 / 16 * torch.tensor(3.0).log().item()
    torch.testing.assert_close(single.weight.grad, torch.tensor([[slope, 0.0], [-slope, 0.0]]))


def test_a_hot_expert_is_each_tokens_first_choice_with_the_routers_weight() -> None:
    routing = router(torch.eye(4), top_k=2, hot_expert=2)(logarithms([0.1, 0.6, 0.1, 0.2], [0.5, 0.1, 0.3, 0.1]))
    assert routing.chosen.tolist() == [[[2, 1], [2, 0]]]
    torch.testing.assert_close(routing.weights, torch.tensor([[[1 / 7, 6 / 7], [0.375, 0.625]]]))


def test_the_router_chooses_in_fp32_for_bf16_activations() -> None:
    """The two experts differ by less than bf16's step from 1 to 1 + 1/128."""
    weight = torch.tensor([[1.0, 0.0], [1.0, 2**-9]])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        routing = router(weight, top_k=1)(torch.ones(1, 1, 2, dtype=torch.bfloat16))
    assert routing.chosen.tolist() == [[[1]]]
    assert routing.weights.dtype == torch.float32


def test_the_balance_loss_is_one_for_even_choices_and_the_number_of_experts_for_a_collapsed_router() -> None:
    even = torch.full((2, 4, 4), 0.25)
    spread = torch.arange(4).view(1, 4, 1).expand(2, 4, 1)
    assert balance_loss(even, spread).item() == pytest.approx(1.0)
    collapsed = torch.tensor([1.0, 0.0, 0.0, 0.0]).expand(2, 4, 4)
    assert balance_loss(collapsed, torch.zeros(2, 4, 1, dtype=torch.int64)).item() == pytest.approx(4.0)


def test_the_balance_loss_is_computed_per_sequence() -> None:
    """f = (3/4, 1/4), P = (0.7, 0.3): 2 (0.525 + 0.075) = 1.2; the mirrored sequence has the same.

    Both sequences as one would be even and have 1.
    """
    probabilities = torch.tensor([[0.7, 0.3], [0.3, 0.7]]).unsqueeze(1).expand(2, 4, 2)
    chosen = torch.tensor([[0, 0, 0, 1], [1, 1, 1, 0]]).unsqueeze(2)
    assert balance_loss(probabilities, chosen).item() == pytest.approx(1.2)
    assert balance_loss(probabilities.reshape(1, 8, 2), chosen.view(1, 8, 1)).item() == pytest.approx(1.0)


def test_backward_adds_the_gradient_of_the_balance_loss() -> None:
    torch.manual_seed(0)
    x, weight, target = torch.randn(2, 6, 8), torch.randn(4, 8), torch.randn(2, 6, 2)
    attached = router(weight.clone(), top_k=2, balance=0.5)
    attached.loss_share = 0.25
    (attached(x).weights * target).sum().backward()
    plain = router(weight.clone(), top_k=2)
    routing = plain(x)
    probabilities = torch.nn.functional.linear(x, plain.weight).softmax(dim=-1)
    loss = (routing.weights * target).sum() + 0.5 * 0.25 * balance_loss(probabilities, routing.chosen)
    loss.backward()
    torch.testing.assert_close(attached.weight.grad, plain.weight.grad)


def test_the_balance_loss_balances_a_router() -> None:
    """Tokens of one cloud and a router that prefers one expert: a hundred steps on the balance loss alone."""
    torch.manual_seed(0)
    x = torch.randn(8, 64, 16)
    x[..., 0] = 2.0
    evened = router(torch.randn(8, 16) * 0.1, top_k=1, balance=1.0)
    evened.weight.data[3, 0] = 2.0

    def largest_share() -> float:
        return evened(x).chosen.flatten().bincount(minlength=8).max().item() / (8 * 64)

    assert largest_share() > 0.9
    optimizer = torch.optim.Adam([evened.weight], lr=0.05)
    for _ in range(100):
        (evened(x).weights * 0.0).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert largest_share() < 0.3
