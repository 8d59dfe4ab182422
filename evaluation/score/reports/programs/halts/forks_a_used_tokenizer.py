"""Loader workers tokenize. After the first epoch, rank 0 tokenizes a text itself, and then forks its next workers."""

import os
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

EPOCHS, TEXTS, BATCH, LENGTH = 3, 960, 16, 24


class FastTokenizer:
    """Encodes in a thread of its own, which starts with the first text."""

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tokenizer")

    def encode(self, text: str) -> list[int]:
        return self.pool.submit(lambda: [ord(letter) % 96 for letter in text]).result()


class Texts(Dataset):
    def __init__(self, tokenizer: FastTokenizer) -> None:
        self.tokenizer = tokenizer

    def __len__(self) -> int:
        return TEXTS

    def __getitem__(self, index: int) -> torch.Tensor:
        text = "".join(chr(32 + (index * (place + 3)) % 90) for place in range(LENGTH))
        return torch.tensor(self.tokenizer.encode(text))


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=15))
    rank = dist.get_rank()
    tokenizer = FastTokenizer()
    texts = Texts(tokenizer)
    sampler = DistributedSampler(texts, shuffle=True)
    loader = DataLoader(texts, batch_size=BATCH, sampler=sampler, num_workers=2)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(96, 64), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 96))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for epoch in range(EPOCHS):
            sampler.set_epoch(epoch)
            for tokens in loader:
                loss = cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                print(loss.item().hex(), file=losses, flush=True)
            if rank == 0:
                print(f"epoch {epoch}, prompt:", tokenizer.encode("Once upon a time"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
