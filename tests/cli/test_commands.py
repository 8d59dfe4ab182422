"""The commands as a person types them: their output and exit codes, in real processes unless they only refuse."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import traincope
from tests.cli import forked
from traincope.cli.main import COMMANDS, load_command, main

ENVIRONMENT = {**os.environ, "COLUMNS": "100", "OMP_NUM_THREADS": "1"}


def run(*words: str, timeout: float = 150.0) -> subprocess.CompletedProcess[str]:
    return forked.traincope(*words, environment=ENVIRONMENT, timeout=timeout)


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """A run of two steps (the last mark begins a third, in which nothing is trained)."""
    with traincope.run(tmp_path / "run") as recording:
        for _ in range(3):
            recording.step()
            with traincope.span("work"):
                pass
    return tmp_path / "run"


def exit_code(*words: str) -> object:
    """Run a command that ends at once, in this process."""
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    return ended.value.code


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_the_name_it_is_listed_by_and_help_with_an_example(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    command = load_command(name)
    assert command.name == name
    assert exit_code(name, "--help") == 0
    assert f"example: {command.example}".split() == capsys.readouterr().out.split("\n\n")[-1].split()


LIGHT = (["--version"], ["--help"], ["explain", "straggler"], ["ls", "."], ["plan", "--help"], ["import", "--help"])
MAX_MODULES = 150
"""Modules of ours that a light command may import. They take most of its start."""


@pytest.mark.parametrize("words", LIGHT, ids=" ".join)
def test_a_light_command_imports_little_and_no_other_command(words: list[str], tmp_path: Path) -> None:
    program = f"import sys; sys.argv = ['traincope', *{words}]; import traincope.cli.main as m; m.main()"
    listed = "import atexit, sys; atexit.register(lambda: print(*sys.modules, sep='\\n', file=sys.stderr));"
    ran = subprocess.run(
        [sys.executable, "-c", listed + program], check=True, capture_output=True, text=True, cwd=tmp_path
    )
    ours = [line for line in ran.stderr.splitlines() if line.startswith("traincope.")]
    assert 0 < len(ours) < MAX_MODULES
    commands = {line.split(".")[3] for line in ours if line.startswith("traincope.cli.commands.")}
    assert commands == ({COMMANDS[words[0]].place.split(":")[0]} if words[0] in COMMANDS else set())


def test_help_lists_the_commands() -> None:
    shown = run("--help").stdout
    for name, listed in COMMANDS.items():
        assert name in shown
        assert listed.help.split()[0] in shown


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (
            ["report", "nowhere"],
            4,
            "nowhere does not exist; give the directory that `traincope.run(out=...)` was given",
        ),
        (["report", "{tmp}"], 4, "is not a run directory: it has no run.json"),
        (
            ["report", "{repo}/README.md"],
            4,
            "README.md is a file and not a run directory; make a run of a trace, table",
        ),
        (["train", "{tmp}/none.toml"], 3, "none.toml"),
        (
            ["train", "{repo}/examples/fsdp.toml", "--set", "train.stepz=5"],
            3,
            "[train] has no key stepz; did you mean steps?",
        ),
        (["train", "{repo}/examples/demo.toml", "--set", "parallel.ranks=3"], 3, "change a size in [parallel]"),
        (["train", "{repo}/examples/demo.toml", "--set", "parallel.virtual=8"], 3, "model.layers = 6 are too few"),
        (
            ["train", "{repo}/examples/fsdp.toml", "--set", "data.path={tmp}/gone"],
            6,
            "gone does not exist; name a file",
        ),
        (
            [
                "train",
                "{repo}/examples/fsdp.toml",
                "--set",
                "data.path={repo}/LICENSE",
                "--set",
                "model.sequence=65536",
            ],
            6,
            "tokens, too few for one sequence of 65536; give more text, or a smaller model.sequence",
        ),
        (["demo", "--steps", "1"], 2, "leaves nothing to report after the warm-up step; give 2 or more"),
        (["demo", "--rl", "--ranks", "4"], 2, "--rl has 2 ranks and injects no fault; leave out --ranks and --fault"),
        (["demo", "--out", "{repo}/examples"], 2, "already exists and is not empty"),
        (["demo", "--out", "{repo}/README.md"], 2, "README.md is not a directory; give another with --out"),
        (["unknown"], 2, "invalid choice"),
    ],
)
def test_bad_input_is_one_sentence_and_its_exit_code(
    tmp_path: Path, words: list[str], code: int, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    repo = Path(__file__).parents[2]
    assert exit_code(*(word.format(tmp=tmp_path, repo=repo) for word in words)) == code
    printed = capsys.readouterr().err
    assert sentence in printed
    assert "Traceback" not in printed


def test_a_run_of_another_version_is_refused(recorded: Path) -> None:
    card = recorded / "run.json"
    card.write_text(card.read_text().replace('"version": 3', '"version": 7'))
    ended = run("report", str(recorded))
    assert ended.returncode == 5
    assert "was written in format 7, this traincope reads format 3 and older" in ended.stderr


def test_report_prints_text_and_json(recorded: Path) -> None:
    text = run("report", str(recorded))
    assert text.returncode == 0
    assert text.stdout.index("VERDICT") < text.stdout.index("WHERE THE TIME WENT")
    document = json.loads(run("report", str(recorded), "--format", "json").stdout)
    assert document["run"]["steps"] == 1
    assert document["run"]["excluded_steps"] == [0]


def test_report_writes_a_file(recorded: Path, tmp_path: Path) -> None:
    target = tmp_path / "report.json"
    assert run("report", str(recorded), "--format", "json", "-o", str(target)).stdout == ""
    assert json.loads(target.read_text())["schema_version"] == 3
    refused = run("report", str(recorded), "-o", str(tmp_path / "no" / "report.txt"))
    assert refused.returncode == 2
    assert "cannot write" in refused.stderr


def test_report_into_a_closed_pipe_is_quiet(recorded: Path) -> None:
    command = f"{sys.executable} -m traincope.cli.main report {recorded} | head -c 10"
    ended = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], check=False, capture_output=True, text=True, timeout=150
    )
    assert ended.stderr == ""
