"""Rules of the code that a type checker does not check."""

import ast
import subprocess
import sys
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
import traincope.report
assert "torch" not in [m for m, module in sys.modules.items() if module is not None]
"""


def calls(tree: ast.AST) -> list[ast.Call]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call)]


def test_importing_and_analysing_need_no_torch() -> None:
    subprocess.run([sys.executable, "-c", OFFLINE_WITHOUT_TORCH], check=True, timeout=150)


def test_a_training_process_imports_no_analysis() -> None:
    code = "import sys, traincope; print(sorted(m for m in sys.modules if m.startswith('traincope.')))"
    printed = subprocess.run([sys.executable, "-c", code], check=True, timeout=150, capture_output=True, text=True)
    assert "traincope.record.run" in printed.stdout
    for offline in ("analysis", "timeline", "report", "cli", "engine"):
        assert f"traincope.{offline}" not in printed.stdout


def test_the_public_names_are_these() -> None:
    assert sorted(traincope.__all__) == PUBLIC_NAMES


INJECTED_ENDS = PACKAGE / "faults" / "kinds" / "ends.py"
"""Faults that end the process of a rank, on request."""


def test_only_the_command_line_prints_and_exits() -> None:
    guilty = []
    for path in SOURCES:
        if path.is_relative_to(PACKAGE / "cli") or path == INJECTED_ENDS:
            continue
        for call in calls(ast.parse(path.read_text())):
            called = ast.unparse(call.func)
            if called in {"print", "exit", "quit", "sys.exit", "os._exit", "sys.stdout.write"}:
                guilty.append(f"{path.relative_to(PACKAGE)}:{call.lineno} {called}")
    assert guilty == []


def test_one_place_catches_everything() -> None:
    broad = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ExceptHandler) and (node.type is None or ast.unparse(node.type) == "Exception"):
                broad.append(str(path.relative_to(PACKAGE)))
    assert broad == ["record/instrumentation/guard.py"]


THIN_LINES = 60
"""A framework's callback has fewer lines than this. What callbacks share is in `integrations/training/`."""


def test_the_callback_of_a_framework_is_thin() -> None:
    lines = {path.stem: len(path.read_text().splitlines()) for path in (PACKAGE / "integrations").glob("*.py")}
    assert lines.keys() >= {"accelerate", "deepspeed", "hugging_face", "lightning", "ray_train", "torchtitan"}
    assert {name: count for name, count in lines.items() if count >= THIN_LINES} == {}
