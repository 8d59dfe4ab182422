import json
import subprocess
import sys
from pathlib import Path

from traincope.record.session.environment import allowed_variables, git_revision

TOKEN = "hf_planted0123456789"


def test_only_variables_that_affect_a_training_are_recorded() -> None:
    variables = {"NCCL_ALGO": "Ring", "HOME": "/root", "HF_TOKEN": TOKEN, "NCCL_AUTH_KEY": TOKEN, "WORLD_SIZE": "8"}
    variables["TORCH_STORE"] = f"s3://me:{TOKEN}@store/x"
    assert allowed_variables(variables) == {"NCCL_ALGO": "Ring", "WORLD_SIZE": "8"}


SECRETIVE = """
import os, sys
import torch
import traincope

secret = os.environ["HF_TOKEN"]

def train(key):
    raise ValueError(f"bad key {key}")

class Odd:
    def __float__(self):
        raise ValueError(f"no number: {secret}")

with traincope.run(sys.argv[1], messages=False) as run:
    run.step()
    run.log(loss=Odd(), lr=secret)
    with traincope.span("work"):
        train(secret)
"""


def test_the_run_records_its_environment_without_a_planted_secret(tmp_path: Path) -> None:
    """The secret is in the environment, the arguments, a local variable, and the messages of exceptions."""
    environment = {"HF_TOKEN": TOKEN, "NCCL_ALGO": "Tree", "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-c", SECRETIVE, str(tmp_path / "run"), "--token", TOKEN]
    ended = subprocess.run(command, check=False, timeout=150, capture_output=True, env=environment)
    assert ended.returncode == 1
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert any(path.suffix == ".seg" for path in files)
    assert [path for path in files if TOKEN.encode() in path.read_bytes()] == []
    run_json = json.loads((tmp_path / "run" / "run.json").read_text())
    assert run_json["environment"] == {"NCCL_ALGO": "Tree"}
    assert {"python", "torch", "traincope"} <= run_json["versions"].keys()
    card = json.loads(next((tmp_path / "run").rglob("rank.json")).read_text())
    assert card["device"]["count"] >= 1
    assert card["device"]["memory_bytes"] >= 2**28


SAMPLES = """
import os, sys
import torch
import traincope

secret = os.environ["HF_TOKEN"]

class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return 12  # so many steps that one is traced

    def __getitem__(self, index):
        return secret

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(128, 8)
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(2))
        self.register_buffer("planted", torch.tensor(list(secret.encode())))

    def forward(self, texts):
        numbers = torch.tensor([list(text.encode()) for text in texts])
        x = self.embedding(numbers)
        for block in self.blocks:
            x = block(x)
        return x.square().mean()

with traincope.run(sys.argv[1], level=3, budget=None) as run:
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for texts in torch.utils.data.DataLoader(Texts(), batch_size=1):
        loss = model(texts)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        run.log(loss=loss)
        run.step()
"""


def test_samples_and_tensor_contents_are_never_recorded(tmp_path: Path) -> None:
    """Neither text, nor the bytes of integer tensors that hold text, nor their numbers are written."""
    command = [sys.executable, "-W", "ignore", "-c", SAMPLES, str(tmp_path / "run")]
    ended = subprocess.run(command, check=False, timeout=150, capture_output=True, env={"HF_TOKEN": TOKEN})
    assert ended.returncode == 0, ended.stderr.decode()
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert "kernels-step-00000010.json" in [path.name for path in files]
    characters = TOKEN.encode()
    numbers = ", ".join(map(str, characters)).encode()
    forms = (characters, *(b"".join(c.to_bytes(size, "little") for c in characters) for size in (4, 8)), numbers)
    assert [(path, form) for path in files for form in forms if form in path.read_bytes()] == []


def test_the_revision_is_gits(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b")
        return subprocess.run(
            ["git", "-C", str(tmp_path), *identity, *words], check=True, capture_output=True, text=True
        ).stdout.strip()

    git("init", "-q")
    assert git_revision(tmp_path) is None
    git("commit", "-q", "--allow-empty", "-m", "first")
    head = git("rev-parse", "HEAD")
    (tmp_path / "deep" / "er").mkdir(parents=True)
    assert git_revision(tmp_path / "deep" / "er") == head
    git("pack-refs", "--all")
    assert git_revision(tmp_path) == head
    git("worktree", "add", "-q", str(tmp_path / "beside"), "-b", "other")
    assert git_revision(tmp_path / "beside") == head
    git("checkout", "-q", "--detach")
    assert git_revision(tmp_path) == head
