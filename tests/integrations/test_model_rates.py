"""FLOPs per token of models with frozen weights, from the number of their products."""

import pytest
import torch
from torch import nn

from traincope.integrations.training.model_rates import configured_rates, products_of

WIDTH, INNER, LAYERS, VOCABULARY, RANK = 8, 24, 3, 50, 2
ATTENTION, FEED_FORWARD, HEAD = 4 * WIDTH**2, 3 * WIDTH * INNER, WIDTH * VOCABULARY


def linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (linear(WIDTH, WIDTH) for _ in range(4))


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = linear(WIDTH, INNER), linear(WIDTH, INNER), linear(INNER, WIDTH)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn, self.mlp, self.norm = Attention(), FeedForward(), nn.LayerNorm(WIDTH)


class Model(nn.Module):
    """As a Llama: an embedding, layers, a norm, and the output."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens, self.layers = nn.Embedding(VOCABULARY, WIDTH), nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.lm_head = nn.LayerNorm(WIDTH), linear(WIDTH, VOCABULARY)


class Adapted(nn.Module):
    """A matrix with an adapter, as PEFT's LoRA has it."""

    def __init__(self, base_layer: nn.Linear) -> None:
        super().__init__()
        self.base_layer = base_layer
        self.lora_A = nn.ModuleDict({"default": linear(base_layer.in_features, RANK)})
        self.lora_B = nn.ModuleDict({"default": linear(RANK, base_layer.out_features)})


def test_three_products_per_trainable_weight() -> None:
    assert products_of(Model()).flops == 6 * (LAYERS * (ATTENTION + FEED_FORWARD) + HEAD)


@pytest.mark.parametrize(("trained_norm", "reads_input"), [(True, 0), (False, 3 * WIDTH**2)])
def test_frozen_first_layers_only_run_forward(trained_norm: bool, reads_input: int) -> None:
    """The matrices that read the first trainable layer's input need a gradient of it only for a norm before them."""
    model = Model().requires_grad_(requires_grad=False)
    model.layers[2].requires_grad_()
    model.layers[2].norm.requires_grad_(trained_norm)
    trained = 6 * (ATTENTION + FEED_FORWARD) - 2 * reads_input
    products = products_of(model)
    assert products.attention_share() == pytest.approx((1 + 1 + 3) / 9)
    assert products.flops == 2 * 2 * (ATTENTION + FEED_FORWARD) + trained + 4 * HEAD


@pytest.mark.parametrize("adapted", [("q_proj", "v_proj"), ("o_proj",)])
def test_adapters_leave_two_products_of_frozen_weights(adapted: tuple[str, ...]) -> None:
    """The first layer's queries, keys and values read what needs no gradient. Neither does its output, if only that is
    adapted."""
    model = Model().requires_grad_(requires_grad=False)
    for layer in model.layers:
        for name in adapted:
            setattr(layer.self_attn, name, Adapted(getattr(layer.self_attn, name)))
    frozen = 4 * (LAYERS * (ATTENTION + FEED_FORWARD) + HEAD)
    reads_input = (3 if "q_proj" in adapted else 4) * WIDTH**2
    adapters = 6 * LAYERS * len(adapted) * 2 * RANK * WIDTH
    first_adapters = len(adapted) * RANK * WIDTH
    assert products_of(model).flops == frozen + adapters - 2 * (reads_input + first_adapters)


def test_a_packed_weight_counts_as_the_matrix_it_holds() -> None:
    """bitsandbytes stores two values of 4 bits per byte, in one column; ZeRO-3 leaves an empty placeholder."""
    matrix = linear(WIDTH, INNER)
    for shape in ((WIDTH * INNER // 2, 1), (0,)):
        matrix.weight = nn.Parameter(torch.zeros(shape, dtype=torch.uint8), requires_grad=False)
        assert products_of(nn.Sequential(matrix)).flops == 2 * WIDTH * INNER


class Conv1D(nn.Module):
    """The matrix of GPT-2, in the form that transformers gives it."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(shape), requires_grad=False)


class Gpt2(nn.Module):
    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.h = nn.ModuleList([Conv1D(shape)])
        self.attn = Attention()

    class config:  # noqa: N801
        @staticmethod
        def to_dict() -> dict[str, object]:
            shape = {"n_embd": WIDTH, "n_layer": 1, "n_head": 2, "n_positions": 16, "vocab_size": VOCABULARY}
            return {"model_type": "gpt2", **shape}


def test_a_sharded_conv1d_has_no_rates() -> None:
    assert configured_rates(Gpt2((WIDTH, WIDTH))) is not None
    assert configured_rates(Gpt2((WIDTH**2,))) is None
