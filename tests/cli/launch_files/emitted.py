"""Launch files of one small configuration, made by the command."""

from contextlib import redirect_stdout, suppress
from io import StringIO
from pathlib import Path

from traincope.cli.main import main

CONFIG = """# It's "quoted" and costs $$5 of $(HOME).
[model]
layers = 1
hidden = 32
heads = 2
kv_heads = 2
ffn = 32
sequence = 16
[data]
path = "a text"
[parallel]
dp = 2
[train]
steps = 4
batch = 4
[checkpoint]
every = 2
"""
SHARED = {
    "torchrun": (),
    "slurm": (),
    "k8s": ("--image", "ghcr.io/lab/train:1", "--volume", "claim", "--shared"),
    "kubeflow": ("--image", "ghcr.io/lab/train:1", "--volume", "claim", "--shared"),
    "skypilot": ("--gpu", "H100", "--image", "ghcr.io/lab/train:1", "--volume", "volume", "--shared"),
    "mosaicml": ("--gpu", "h100_80gb", "--image", "ghcr.io/lab/train:1", "--shared"),
}
"""Options that each format needs. Those that end with --shared also need a folder."""


def write_inputs(folder: Path) -> Path:
    """Write a text and a configuration into `folder` and return the configuration's path."""
    (folder / "a text").write_text("\n".join(f"{n} squared is {n * n}" for n in range(200)))
    config = folder / "my config.toml"
    config.write_text(CONFIG)
    return config


def emitted(config: Path, kind: str, *words: str, shared: str = "/mnt/my disk") -> str:
    """Return the launch file of a run `a run` on two hosts."""
    options = [*SHARED[kind], *([shared] if SHARED[kind] else [])]
    command = ["train", str(config), "--out", "a run", "--emit", kind, "--gpus-per-node", "1", *options, *words]
    text = StringIO()
    with redirect_stdout(text), suppress(SystemExit):
        main(command)
    return text.getvalue()
