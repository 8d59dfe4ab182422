"""Before anything is set up, each rank asks a hub for its tokenizer. The hub has had too many requests for rank 3."""

import json
import os
import time
from email.message import Message
from urllib.error import HTTPError

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS, ALLOWED, PAUSES = 40, 3, (1.0, 2.0, 4.0)
URL = "https://hub.example/api/models/tiny/tokenizer.json"


class Hub:
    """A hub that answers some requests of a host per minute, and refuses the others."""

    def get(self, caller: int) -> bytes:
        time.sleep(0.05 * caller)
        if caller >= ALLOWED:
            raise HTTPError(URL, 429, "Too Many Requests", Message(), None)
        return json.dumps({"words": 160}).encode()


def load_tokenizer(rank: int) -> int:
    """Return the number of words. A request that is refused is tried again, after longer and longer pauses."""
    for pause in (*PAUSES, None):
        try:
            return int(json.loads(Hub().get(rank))["words"])
        except HTTPError as error:
            if pause is None:
                raise OSError("Can't load the tokenizer of 'tiny', and no cached copy was found") from error
            time.sleep(pause)
    raise AssertionError


def main() -> None:
    words = load_tokenizer(int(os.environ["RANK"]))
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Embedding(words, 48), nn.Tanh(), nn.Linear(48, words)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            tokens = torch.randint(0, words, (64,), generator=torch.Generator().manual_seed(233 * step + rank))
            loss = cross_entropy(model(tokens), tokens.roll(-1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
