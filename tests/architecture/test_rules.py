"""Rules of the code that a type checker does not check."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import traincope

PACKAGE = Path(traincope.__file__).parent
SOURCES = sorted(PACKAGE.rglob("*.py"))

PUBLIC_NAMES = [
    "Analysis",
    "OpenedRun",
    "Run",
    "Timeline",
    "analyze",
    "event",
    "log",
    "open_run",
    "phase",
    "rollout",
    "run",
    "span",
    "step",
    "wait_for",
]

OFFLINE_WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
import traincope
for name in traincope.__all__:
    getattr(traincope, name)
import traincope.cli.main
import traincope.report.text.text
assert "torch" not in [m for m, module in sys.modules.items() if module is not None]
"""


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def calls(tree: ast.AST) -> list[ast.Call]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call)]


def test_importing_and_analysing_need_no_torch() -> None:
    subprocess.run([sys.executable, "-c", OFFLINE_WITHOUT_TORCH], check=True, timeout=150)


def test_a_training_process_imports_no_analysis() -> None:
    code = "import sys, traincope; traincope.run; print(sorted(m for m in sys.modules if m.startswith('traincope.')))"
    printed = subprocess.run([sys.executable, "-c", code], check=True, timeout=150, capture_output=True, text=True)
    assert "traincope.record.run" in printed.stdout
    for offline in ("analysis", "timeline", "report", "cli", "engine"):
        assert f"traincope.{offline}" not in printed.stdout


def test_the_public_names_are_these() -> None:
    assert sorted(traincope.__all__) == PUBLIC_NAMES


INJECTED_ENDS = PACKAGE / "inject" / "kinds" / "ends.py"
"""Faults that end the process of a rank, on request."""


def test_only_the_command_line_prints_and_exits() -> None:
    guilty = []
    for path in SOURCES:
        if path.is_relative_to(PACKAGE / "cli") or path == INJECTED_ENDS:
            continue
        for call in calls(tree_of(path)):
            called = ast.unparse(call.func)
            if called in {"print", "exit", "quit", "sys.exit", "os._exit", "sys.stdout.write"}:
                guilty.append(f"{path.relative_to(PACKAGE)}:{call.lineno} {called}")
    assert guilty == []


SCREEN = PACKAGE / "cli" / "screen.py"
PAST_THE_SCREEN = {"sys.__stdout__", "sys.__stderr__", "sys.stdout.buffer", "sys.stderr.buffer"}
ITS_OWN_CONSOLE = {"Progress", "Live", "Status", "Prompt", "Confirm", "inspect", "print_json"}
"""Names of rich that print to a console of their own unless they get one."""


def test_only_the_screen_reaches_the_terminal() -> None:
    """Everything else passes `sys.stdout` and `sys.stderr`, which the screen replaces, or one of its consoles."""
    guilty = []
    for path in SOURCES + sorted((PACKAGE.parent / "exporters").rglob("*.py")):
        if path == SCREEN:
            continue
        text, tree = path.read_text(), tree_of(path)
        found = [name for name in PAST_THE_SCREEN if name in text]
        from_rich = {
            alias.asname or alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rich")
            for alias in node.names
        }
        for call in calls(tree) if from_rich or "os.write" in text or "import rich" in text else ():
            called, keywords = ast.unparse(call.func), {keyword.arg for keyword in call.keywords}
            is_own = called in ITS_OWN_CONSOLE & from_rich and "console" not in keywords
            to_a_number = called == "os.write" and ast.unparse(call.args[0]) in {"1", "2"}
            if called.split(".")[-1] == "Console" or called.startswith("rich.") or is_own or to_a_number:
                found.append(f"{called} in line {call.lineno}")
        guilty += [f"{path.relative_to(PACKAGE.parent)}: {name}" for name in found]
    assert guilty == []


def test_every_process_that_prints_uses_the_screen() -> None:
    """Those are the modules of the command line that run as a program."""
    programs = [path for path in (PACKAGE / "cli").rglob("*.py") if '__name__ == "__main__"' in path.read_text()]
    assert len(programs) >= 7
    assert [path for path in programs if "make_safe()" not in path.read_text()] == []


def test_one_place_catches_everything() -> None:
    broad = []
    for path in SOURCES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ExceptHandler) and (node.type is None or ast.unparse(node.type) == "Exception"):
                broad.append(str(path.relative_to(PACKAGE)))
    assert broad == ["record/instrumentation/guard.py"]


THIN_LINES = 60
"""A framework's callback has fewer lines than this. What callbacks share is in `integrations/training/`."""


def test_the_callback_of_a_framework_is_thin() -> None:
    lines = {path.stem: len(path.read_text().splitlines()) for path in (PACKAGE / "integrations").glob("*.py")}
    assert lines.keys() >= {"accelerate", "deepspeed", "hugging_face", "lightning", "ray_train", "torchtitan"}
    assert {name: count for name, count in lines.items() if count >= THIN_LINES} == {}
