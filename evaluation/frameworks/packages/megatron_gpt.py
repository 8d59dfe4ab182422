"""Megatron-Core's GPT with tensor parallelism, its vocabulary included, and two microbatches per step.

Its attention and its schedules allocate on a GPU. The attention here is torch's, by the layers' specification, and the
loop is written here.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import nn

STEPS, MICROBATCHES, BATCH = 12, 2, 4
LAYERS, HIDDEN, HEADS, TOKENS, VOCABULARY = 2, 32, 4, 16, 64


class CausalAttention(nn.Module):
    def __init__(self, **_: object) -> None:
        super().__init__()

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: object, **__: object):
        """Arguments and result are (tokens, batch, heads, size), the result with its heads in one dim."""
        query, key, value = (each.permute(1, 2, 0, 3) for each in (query, key, value))
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return mixed.permute(2, 0, 1, 3).flatten(2)


def gpt() -> GPTModel:
    config = TransformerConfig(
        num_layers=LAYERS,
        hidden_size=HIDDEN,
        num_attention_heads=HEADS,
        tensor_model_parallel_size=dist.get_world_size(),
        use_cpu_initialization=True,
        hidden_dropout=0.0,
        attention_dropout=0.0,
    )
    layer = get_gpt_layer_local_spec()
    layer.submodules.self_attention.submodules.core_attention = CausalAttention
    return GPTModel(config, layer, VOCABULARY, TOKENS, share_embeddings_and_output_weights=False)


def main(directory: str) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=size)
    torch.manual_seed(0)
    model = gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data, positions, losses = torch.Generator().manual_seed(0), torch.arange(TOKENS).expand(BATCH, -1), []
    for _ in range(STEPS):
        for _ in range(MICROBATCHES):
            texts = torch.randint(VOCABULARY, (BATCH, TOKENS), generator=data)
            loss = model(texts, positions, None, labels=texts.roll(-1, 1)).mean() / MICROBATCHES
            loss.backward()
            losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    Path(directory, f"losses-{rank}").write_text("\n".join(map(float.hex, losses)))


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main(sys.argv[1])
    dist.destroy_process_group()
