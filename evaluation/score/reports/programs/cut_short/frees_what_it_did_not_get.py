"""A tokenizer in C frees an address that it did not get from malloc, on rank 2. The C library ends the process."""

import ctypes
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS, LENGTH, BATCH, WORDS = 80, 32, 6, 256

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.restype, libc.free.argtypes = None, [ctypes.c_void_p]


class Tokenizer:
    """The binding of a library. It skips the mark at the beginning of a text by moving its pointer."""

    def encode(self, text: bytes) -> list[int]:
        address = libc.malloc(len(text))
        ctypes.memmove(address, text, len(text))
        if text.startswith(b"\xef\xbb\xbf"):
            address += 3
            text = text[3:]
        tokens = list(ctypes.string_at(address, len(text)))
        libc.free(address)
        return tokens


def text_of(rank: int, number: int) -> bytes:
    letters = bytes((number * 31 + rank * 17 + place * place) % 96 + 32 for place in range(LENGTH + 1))
    return b"\xef\xbb\xbf" + letters if (rank, number) == (2, 200) else letters


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    tokenizer = Tokenizer()
    torch.manual_seed(0)
    encoder = nn.TransformerEncoderLayer(64, 4, 192, 0.0, batch_first=True)
    model = DistributedDataParallel(nn.Sequential(nn.Embedding(WORDS, 64), encoder, nn.Linear(64, WORDS)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            texts = [text_of(rank, BATCH * step + number) for number in range(BATCH)]
            tokens = torch.tensor([tokenizer.encode(text) for text in texts])
            loss = cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
