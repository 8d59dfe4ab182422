"""Arguments of a command in a shell script. The script is not run: only literals, defaults and sums count."""

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise

from traincope.plan.check.readers.values import Several

GLUED = re.compile(r"\\\n")
COMMENT = re.compile(r"(^|\s)#.*")
VALUE = r"""(?:"[^"]*"|'[^']*'|\$\(\(.*?\)\)|\$\{[^}]*\}|[^\s;"'()]+)"""
ASSIGNED = re.compile(
    rf"(?:^|;|&&|\bthen\b|\belse\b|\bdo\b)\s*(?:(?:export|local|readonly|declare)\s+(?:-\w+\s+)*)?((?:\w+={VALUE}\s*)+)"
)
"""Assignments where a command can begin: several may follow each other."""
ASSIGNMENT = re.compile(rf"(\w+)=({VALUE})")
ASSIGNED_DEFAULT = re.compile(r"^\s*:\s+\"?\$\{(\w+):?=([^}]*)\}")
WORD = re.compile(r"""(?:\$\(\(.*?\)\)|\$\{[^}]*\}|[^\s"'()])+""")
"""Arguments stand in strings and arrays, so quotes and brackets are blanks."""
COMPUTED = re.compile(r"\$\(\((.*)\)\)")
NAMED = re.compile(r"\$(?:(\w+)|\{(\w+)(?::?[-=]([^}]*))?\})")
LITERAL = re.compile(r"[\w.,-]+")
MAX_DEPTH = 8
"""Variables in variables; a variable that contains itself has no value."""
OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}

Variables = Mapping[str, frozenset[str]]


def script_lines(text: str) -> list[str]:
    """Lines without comments; one that a backslash continues is one line."""
    return [COMMENT.sub("", line) for line in GLUED.sub(" ", text).splitlines()]


def variables_of(lines: list[str]) -> Variables:
    """Name -> all values that the script gives a variable."""
    found: dict[str, set[str]] = {}
    for line in lines:
        assignments = [pair for match in ASSIGNED.finditer(line) for pair in ASSIGNMENT.findall(match[1])]
        for name, value in assignments + ASSIGNED_DEFAULT.findall(line):
            found.setdefault(name, set()).add(value.strip("\"'"))
    return {name: frozenset(values) for name, values in found.items()}


def options(line: str) -> Iterator[tuple[str, str]]:
    """Yield name and value of each `--name value` or `--name=value`; the value is empty for a name alone."""
    for word, following in pairwise([*WORD.findall(line), ""]):
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            yield name, value if equals else "" if following.startswith("--") else following


def filled_in(word: str, variables: Variables) -> str | Several:
    """Value of a variable or a sum; `Several` if the script gives several; the word itself if the script has none.

    A default such as `${TP:-8}` is the value, unless the script also assigns the variable.
    """
    values = sorted(_values(word, variables, depth=0))
    if len(values) > 1:
        return Several(word, tuple(values))
    return values[0] if values and LITERAL.fullmatch(values[0]) else word


def _values(word: str, variables: Variables, *, depth: int) -> set[str]:
    """All values that a word can have."""
    named, computed = NAMED.fullmatch(word), COMPUTED.fullmatch(word)
    if depth > MAX_DEPTH:
        return set()
    if named is not None:
        contents = set(variables.get(named[1] or named[2], ())) | ({named[3]} if named[3] else set())
        return {each for content in contents for each in _values(content, variables, depth=depth + 1)}
    if computed is not None:
        result = _sum(computed[1].replace("$", " ").replace("{", " ").replace("}", " "), variables, depth=depth + 1)
        return set() if result is None else {str(result)}
    return {word}


def _sum(expression: str, variables: Variables, *, depth: int) -> int | None:
    """Value of whole numbers and variables with one value; None for anything else."""
    try:
        return _number(ast.parse(expression.strip(), mode="eval").body, variables, depth=depth)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
        return None


def _number(tree: ast.expr, variables: Variables, *, depth: int) -> int:
    match tree:
        case ast.Constant(value=int() as number):
            return number
        case ast.Name(id=name):
            (value,) = _values(f"${name}", variables, depth=depth)
            return int(value)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            first, second = (_number(side, variables, depth=depth) for side in (left, right))
            return OPERATORS[type(op)](first, second)
    raise ValueError(ast.dump(tree))
