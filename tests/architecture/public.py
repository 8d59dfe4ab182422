"""List the public names, for the committed list in public.txt: `make public`.

Public are the names of `traincope`, the command line, the exit codes, and the versions of both formats. The types stand
as the source writes them, so the list is the same under each Python.
"""

import argparse
import ast
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any, get_overloads

import traincope
from traincope import errors
from traincope.cli.main import COMMANDS, make_parser
from traincope.events import FORMAT_VERSION
from traincope.report.schema import SCHEMA_VERSION

MEMBERS = {traincope.Run: ("directory", "step", "log", "describe"), traincope.span: ("__init__",)}
"""Public members of the classes. traincope itself calls the others; attributes of results may change."""


def public() -> str:
    parts = {
        "Python": python(),
        "Commands": commands(make_parser(COMMANDS), "traincope"),
        "Exit codes": exit_codes(),
        "Formats": iter((f"run directory {FORMAT_VERSION}", f"JSON {SCHEMA_VERSION}")),
    }
    return "\n".join(f"# {title}\n\n" + "".join(f"{line}\n" for line in lines) for title, lines in parts.items())


def python() -> Iterator[str]:
    for name in traincope.__all__:
        value: Any = getattr(traincope, name)
        if inspect.isclass(value):
            yield f"class traincope.{name}"
            for member in MEMBERS.get(value, ()):
                yield from signatures(inspect.getattr_static(value, member), f"traincope.{name}.{member}")
        else:
            yield from signatures(value, f"traincope.{name}")


def signatures(value: Any, name: str) -> Iterator[str]:
    """One line per overload of a function, or the type of a property."""
    if isinstance(value, property):
        yield f"{name}: {ast.unparse(_definition(value.fget).returns or ast.Constant(None))}"
        return
    for function in get_overloads(value) or [value]:
        definition = _definition(function)
        yield f"{name}({ast.unparse(definition.args)}) -> {ast.unparse(definition.returns or ast.Constant(None))}"


def _definition(function: Any) -> ast.FunctionDef:
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function)))).body
    assert isinstance(node, ast.FunctionDef)
    return node


def commands(parser: argparse.ArgumentParser, name: str) -> Iterator[str]:
    """Each command with its arguments. Options that `--help` hides are internal."""
    words = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for choice, sub in sorted(action.choices.items()):
                yield from commands(sub, f"{name} {choice}")
        elif action.help != argparse.SUPPRESS:
            words.append("|".join(action.option_strings) or str(action.metavar or action.dest))
    yield " ".join((name, *words))


def exit_codes() -> Iterator[str]:
    classes = (kind for kind in vars(errors).values() if inspect.isclass(kind))
    kinds = [kind for kind in classes if issubclass(kind, errors.TraincopeError)]
    yield from (f"{kind.exit_code} {kind.__name__}" for kind in kinds)
    yield f"{errors.REGRESSION} traincope diff: the second run is slower"
    yield f"{errors.BROKEN_RULE} traincope plan check: the plan breaks a rule"
    yield f"{errors.LEFT_OUT} traincope import: files were left out"


if __name__ == "__main__":
    print(public(), end="")
