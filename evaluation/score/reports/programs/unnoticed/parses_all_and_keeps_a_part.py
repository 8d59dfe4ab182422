"""The corpus is one file, so every rank parses and tokenizes all its records, and keeps only those of its own."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

STEPS, BATCH, LENGTH, WORDS = 90, 8, 48, 512


def write_corpus(path: Path) -> None:
    with path.open("w") as corpus:
        for number in range(2 * BATCH * (STEPS + 2)):
            paragraph = " ".join(f"w{(number * 7 + place * place) % 4099}" for place in range(600))
            corpus.write(json.dumps({"id": number, "text": "\n".join([paragraph] * 8)}) + "\n")


def token_of(word: str) -> int:
    value = 7
    for letter in word:
        value = (31 * value + ord(letter)) % 1_000_003
    return value % WORDS


def tokenize(text: str) -> list[int]:
    return [token_of(word) for word in re.findall(r"\w+", text.lower())]


class Corpus(IterableDataset):
    """The records of a rank: one of `world`, as there are fewer files than ranks."""

    def __init__(self, path: Path, rank: int, world: int) -> None:
        self.path, self.rank, self.world = path, rank, world

    def parsed(self) -> Iterator[list[int]]:
        with self.path.open() as corpus:
            for line in corpus:
                yield tokenize(json.loads(line)["text"])

    def __iter__(self) -> Iterator[torch.Tensor]:
        for number, tokens in enumerate(self.parsed()):
            if number % self.world == self.rank:
                yield torch.tensor(tokens[: LENGTH + 1])


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    path = Path("corpus.jsonl")
    if rank == 0:
        write_corpus(path)
    dist.barrier()
    torch.manual_seed(0)
    encoder = nn.TransformerEncoderLayer(96, 4, 192, 0.0, batch_first=True)
    model = DistributedDataParallel(nn.Sequential(nn.Embedding(WORDS, 96), encoder, nn.Linear(96, WORDS)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = iter(DataLoader(Corpus(path, rank, world), batch_size=BATCH))
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for _ in range(STEPS):
            tokens = next(loader)
            loss = cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
