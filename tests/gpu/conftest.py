"""Skip with a clear message if there is no GPU; otherwise collect the figures and print them as Markdown."""

import json
import os
import platform
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.gpu.figures import Figure, Figures, as_markdown

SKIPPED = (
    "NOTHING OF THE GPU PATH WAS VERIFIED: torch sees no CUDA device here. "
    "On a machine with an NVIDIA GPU run `python -m pytest tests/gpu` (docs/develop/gpu.md)"
)
TIMED = {
    "TORCH_NCCL_ENABLE_TIMING": "1",
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "20000",
    "TORCH_FR_BUFFER_SIZE": "20000",
}
"""Make NCCL's own flight recorder time its operations. torch 2.9 renamed the variable."""

HERE = Path(__file__).parent

_figures = Figures()


@pytest.fixture(autouse=True)
def _gpu() -> Iterator[None]:
    yield
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


@pytest.fixture
def figures() -> Figures:
    """A function that collects a test's measurement and its limit."""
    return _figures


@pytest.fixture(scope="session")
def _group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    os.environ.update({name: os.environ.get(name, value) for name, value in TIMED.items()})
    torch.cuda.set_device(0)
    store = tmp_path_factory.mktemp("group") / "rendezvous"
    dist.init_process_group(
        "nccl", init_method=f"file://{store}", rank=0, world_size=1, device_id=torch.device("cuda", 0)
    )
    dist.barrier()
    yield
    dist.destroy_process_group()


@pytest.fixture
def nccl(_gpu: None, _group: None) -> None:
    """An NCCL group of this process alone, with a timing flight recorder."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without a GPU, one test stands for all, skipped with one sentence.

    With a GPU, warnings of torch's compiler and of NCCL are not failures of the recorder.
    """
    ours = [item for item in items if str(item.path).startswith(f"{HERE}{os.sep}")]
    for item in ours:
        item.add_marker(pytest.mark.filterwarnings("default"))
    if ours and not torch.cuda.is_available():
        ours[0].add_marker(pytest.mark.skip(reason=SKIPPED))
        items[:] = [item for item in items if item not in ours[1:]]
        config.hook.pytest_deselected(items=ours[1:])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not _figures.taken:
        return
    versions = _versions()
    text = as_markdown(versions, _figures.taken)
    terminalreporter.write_line("")
    terminalreporter.write_line(text)
    if folder := os.environ.get("OUT"):
        Path(folder, "gpu.md").write_text(text + "\n")
        Path(folder, "gpu.json").write_text(json.dumps(_as_json(versions, _figures.taken), indent=2) + "\n")


def _versions() -> dict[str, str]:
    return {
        "GPU": torch.cuda.get_device_name(0),
        "torch": torch.__version__,
        "CUDA": str(torch.version.cuda),
        "NCCL": ".".join(map(str, torch.cuda.nccl.version())),
        "Python": platform.python_version(),
    }


def _as_json(versions: dict[str, str], figures: list[Figure]) -> dict[str, object]:
    return {
        "versions": versions,
        "figures": [
            {"what": figure.what, "measured": figure.measured, "held_to": figure.held_to} for figure in figures
        ],
    }
