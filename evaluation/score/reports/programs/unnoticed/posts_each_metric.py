"""All ranks send each metric to a server and wait for its answer, for a time that is known. Rank 0 writes its share."""

import json
import os
import threading
import time
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

STEPS, ANSWER_SECONDS, KERNEL_SECONDS = 50, 0.05, 0.12


class Tracking(BaseHTTPRequestHandler):
    """A server of metrics that is far away."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(ANSWER_SECONDS)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Write no log."""


class Logger:
    """A client that sends one request per metric, in the training thread."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.seconds = 0.0

    def log_metric(self, key: str, value: float, step: int) -> None:
        connection = HTTPConnection("127.0.0.1", self.port)
        body = json.dumps({"key": key, "value": value, "step": step})
        connection.request("POST", "/api/2.0/runs/log-metric", body, {"Content-Type": "application/json"})
        connection.getresponse().read()
        connection.close()

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        began = time.monotonic()
        for key, value in metrics.items():
            self.log_metric(key, value, step)
        self.seconds += time.monotonic() - began


class Kernel(nn.Module):
    """A layer that takes a fixed time, as a kernel of a device does."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        time.sleep(KERNEL_SECONDS)
        return hidden.sin()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Tracking)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    logger = Logger(server.server_address[1])
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(60, 180), Kernel(), nn.Linear(180, 60)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    began = time.monotonic()
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            inputs = torch.randn(32, 60, generator=torch.Generator().manual_seed(397 * step + rank))
            loss = mse_loss(model(inputs), inputs.abs())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
            logger.log_metrics({"loss": loss.item(), "lr": optimizer.param_groups[0]["lr"]}, step)
    if rank == 0:
        Path("gain").write_text(str(logger.seconds / (time.monotonic() - began)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
