"""Nothing that a run, a file or an argument is called commands the terminal, whichever command prints it."""

import json
import logging
import os
import pty
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import traincope
from tests.cli.test_commands import ENVIRONMENT
from traincope.cli.main import main
from traincope.cli.screen import make_console, make_safe, print_exactly, print_past_redirection

HOSTILE = "\x1b]0;owned\x07\x1b[2Ja\u202eb\x9b31m\r"
"""Sets the terminal's title, clears it, turns letters around, and returns to the line's begin."""
VISIBLE = r"\x1b]0;owned\x07\x1b[2Ja\u202eb\x9b31m\r"
DEMO = Path(__file__).parents[2] / "sample_runs" / "demo"
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture(autouse=True)
def _process() -> Iterator[None]:
    """Give this process back its streams, which a command changes as if the process were its own."""
    streams = sys.stdout, sys.stderr
    yield
    sys.stdout, sys.stderr = streams


@pytest.fixture(scope="module")
def hostile_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose directory, id, hosts, names, files and axes are hostile."""
    run = tmp_path_factory.mktemp("runs") / HOSTILE.replace("/", "")
    shutil.copytree(DEMO, run)
    for path in (*run.rglob("*.json"), *run.rglob("*.jsonl")):
        lines = [json.dumps(hostile(json.loads(line))) for line in documents(path)]
        path.write_text("\n".join(lines) + "\n")
    return run


def documents(path: Path) -> list[str]:
    text = path.read_text()
    return text.splitlines() if path.suffix == ".jsonl" else [text]


HOSTILE_KEYS = {"id", "host", "name", "run_id", "file", "module", "message", "workflow", "role", "device"}


def hostile(value: object) -> object:
    if isinstance(value, dict):
        return {
            key: f"{each}{HOSTILE}" if key in HOSTILE_KEYS and isinstance(each, str) else hostile(each)
            for key, each in value.items()
        }
    return [hostile(each) for each in value] if isinstance(value, list) else value


def printed(capfd: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit):
        main(words)
    output, errors = capfd.readouterr()
    return output + errors


def is_safe(text: str) -> bool:
    return all(char.isprintable() or char in "\n\t" for char in text)


@pytest.mark.parametrize(
    "words",
    [
        ("report", "RUN"),
        ("report", "RUN", "--brief"),
        ("report", "RUN", "--what-if", f"{HOSTILE}=2"),
        ("report", "RUN", "--workflow", HOSTILE),
        ("ls", "ABOVE"),
        ("diff", "RUN", "RUN"),
        ("hang", "RUN"),
        ("sql", "RUN", "select * from spans"),
        ("sql", "RUN", f'select "{HOSTILE}" from steps'),
        ("explain", HOSTILE),
        ("export", "RUN", "--to", HOSTILE),
        ("import", f"/no/{HOSTILE}"),
        ("doctor", "RUN"),
        ("profile", "RUN"),
        ("ship", "RUN"),
        ("agent", f"/no/{HOSTILE}"),
        ("live", f"/no/{HOSTILE}"),
        ("view", f"/no/{HOSTILE}"),
        ("mcp", f"/no/{HOSTILE}"),
        ("train", f"/no/{HOSTILE}"),
        ("preflight", f"/no/{HOSTILE}"),
        ("drift", f"/no/{HOSTILE}"),
        ("demo", "--fault", HOSTILE),
        ("plan", HOSTILE),
        ("dashboards", HOSTILE),
        (HOSTILE,),
    ],
    ids=lambda words: " ".join(words[:1]).replace(HOSTILE, "no command"),
)
def test_every_command_prints_hostile_names_visibly(
    words: tuple[str, ...], hostile_run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    paths = {"RUN": str(hostile_run), "ABOVE": str(hostile_run.parent)}
    text = printed(capfd, *(paths.get(word, word) for word in words))
    assert text
    assert is_safe(text), text


def test_streams_and_consoles_show_what_a_text_would_do(capfd: pytest.CaptureFixture[str]) -> None:
    make_safe()
    make_safe()
    sys.stdout.write(f"{HOSTILE}\n")
    sys.stderr.write(f"{HOSTILE}\n")
    logging.getLogger("traincope.test").error("%s", HOSTILE)
    make_console(width=100).print(HOSTILE, markup=False)
    sys.stdout.flush()
    print_past_redirection(HOSTILE)
    output, errors = capfd.readouterr()
    by_rich = VISIBLE.replace(r"\x07", "").removesuffix(r"\r")  # it takes some characters out itself
    assert output == f"{VISIBLE}\n{by_rich}\n"
    assert errors.startswith(f"{VISIBLE}\n")
    assert is_safe(errors)
    assert errors.endswith(VISIBLE)


def test_data_reaches_a_pipe_unchanged(capfd: pytest.CaptureFixture[str]) -> None:
    make_safe()
    print_exactly(f"a,{HOSTILE}\n")
    sys.stdout.flush()
    assert capfd.readouterr().out == f"a,{HOSTILE}\n"


def test_a_terminal_gets_colours_and_nothing_else(hostile_run: Path) -> None:
    reading, terminal = pty.openpty()
    words = [sys.executable, "-m", "traincope.cli.main", "ls", str(hostile_run.parent)]
    environment = {**ENVIRONMENT, "TERM": "xterm-256color"}
    with subprocess.Popen(words, stdout=terminal, stderr=terminal, env=environment):
        os.close(terminal)
        text = b""
        while piece := _read(reading):
            text += piece
    os.close(reading)
    shown = text.decode().replace("\r\n", "\n")
    assert COLOURS.search(shown)
    assert is_safe(COLOURS.sub("", shown)), shown


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # all others have closed it
        return b""


@pytest.mark.parametrize(
    ("words", "code"),
    [("ls {runs} >/dev/full", 1), ("ls {runs} >&-", 0), ("ls /no-runs 2>&- >&-", 2), ("ls /no-runs 2>/dev/full", 2)],
)
def test_a_full_or_closed_output_is_one_line_and_no_traceback(words: str, code: int) -> None:
    line = f"{sys.executable} -m traincope.cli.main {words.format(runs=DEMO.parent)}"
    ended = subprocess.run(
        ["sh", "-c", line], capture_output=True, text=True, env=ENVIRONMENT, timeout=100, check=False
    )
    assert ended.returncode == code
    expected = "traincope ls: standard output: No space left on device; free some space, or give another place\n"
    assert ended.stderr == (expected if code == 1 else "")


READ_ONLY = "/sys"
"""A folder in which even root makes no file."""


@pytest.mark.parametrize(
    ("words", "beginning"),
    [
        (
            ("train", str(DEMO.parents[1] / "examples" / "ddp.toml"), "--out", f"{READ_ONLY}/run"),
            "cannot write to /sys: ",
        ),
        (("export", str(DEMO), "--to", "perfetto"), "cannot write demo.perfetto.json: "),
        (("export", str(DEMO), "--redact", "-o", f"{READ_ONLY}/run"), "cannot write the copy to /sys/run: "),
        (("import", str(DEMO), "-o", f"{READ_ONLY}/run"), "cannot write /sys/run: "),
        (("sql", "--views", "-o", f"{READ_ONLY}/x"), "cannot write /sys/x: "),
        (("dashboards", "build", "-o", READ_ONLY), "/sys/grafana/dashboards/"),
    ],
    ids=lambda words: words[0] if isinstance(words, tuple) else "",
)
def test_a_folder_without_the_right_to_write_is_one_line(
    words: tuple[str, ...], beginning: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(READ_ONLY)
    text = printed(capfd, *words)
    assert text.startswith(f"traincope {words[0]}: {beginning}")
    assert text.count("\n") == 1


def test_a_training_whose_record_cannot_be_written_goes_on_after_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with traincope.run(f"{READ_ONLY}/run") as run:
        run.step()
    (record,) = caplog.records
    assert record.exc_info is None
    assert "not recorded, because /sys/run cannot be written: " in record.message
