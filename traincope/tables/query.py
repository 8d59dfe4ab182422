"""SQL on the tables of runs, by DuckDB.

DuckDB holds nothing but the tables that the query names, in memory. The query is one SELECT. It cannot read or write
files, load extensions, reach the network, see variables of this process, or change these settings.
"""

import json
import re
import resource
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from threading import Lock, Timer
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]

from traincope.errors import MissingDependencyError, UsageError
from traincope.record.session.environment import host_memory_bytes
from traincope.store.reading import find_run
from traincope.tables.sources import Sources
from traincope.tables.views import VIEWS
from traincope.units import size

SANDBOX = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "python_enable_replacements": "false",
    "temp_directory": "",
    "lock_configuration": "true",
}
"""Settings of DuckDB. The last one makes the others final."""
QUERY_NODES = ("SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE")
"""Parts of a query that only read."""
TABLE_FUNCTIONS = ("unnest", "range", "generate_series", "json_each", "json_tree")
"""Functions after FROM. Others read files or change settings."""
UNKNOWN_COLUMN = re.compile(r'(?:Referenced column|does not have a column named) "([^"]+)"')
"""The column in DuckDB's message about one that it does not find."""
MAX_NEAREST = 3
MEMORY_SHARE = 4
"""A query may take one part in so many of the memory that this host or container has."""
RESERVE_BYTES = 1 << 30
"""Address space that a query takes for threads without using it."""
_one_query = Lock()
"""The limit of address space belongs to the process."""
ONLY_READ = "give one SELECT: the views can only be read"


def named_runs(paths: Sequence[Path]) -> dict[str, Path]:
    """Find the runs at these paths: name -> directory. Raises NotARunError, and UsageError for a run given twice.

    A run has the name of its directory, or its path if another run has that name too.
    """
    found = [find_run(path).resolve() for path in paths]
    for path, times in Counter(found).items():
        if times > 1:
            raise UsageError(f"{path} is given twice; give each run once")
    names = Counter(path.name for path in found)
    return {path.name if names[path.name] == 1 else str(path): path for path in found}


def table_of(runs: Iterable[Sources], name: str) -> pa.Table:
    """Rows of a view of all these runs, run by run."""
    view = VIEWS[name]
    return pa.concat_tables([view.schema.empty_table(), *(view.table(run) for run in runs)])


def run_query(
    runs: Sequence[Sources], text: str, *, seconds: float | None = None, max_rows: int | None = None
) -> pa.Table:
    """Answer one SELECT on the views of these runs.

    `seconds`: time limit of the query itself, without the reading of the runs. `max_rows`: later rows are not computed.
    Raises UsageError if the query is wrong, forbidden, too slow or too large; MissingDependencyError without DuckDB.
    """
    duckdb = _duckdb()
    views: list[str] = []
    most = host_memory_bytes() // MEMORY_SHARE
    with duckdb.connect(":memory:", config={**SANDBOX, "memory_limit": f"{most}B"}) as connection:
        try:
            views += _named_views(connection, text)
            for name in views:
                connection.register(name, table_of(runs, name))
            with _one_query, _bounded(most), _limited(connection, seconds):
                relation = connection.sql(text)
                answer = (relation if max_rows is None else relation.limit(max_rows)).to_arrow_table()
        except duckdb.InterruptException as error:
            if seconds is None:  # Ctrl-C
                raise KeyboardInterrupt from error
            raise UsageError(
                f"the query took more than {seconds:g} s; ask for less, for example fewer steps"
            ) from error
        except (duckdb.OutOfMemoryException, MemoryError) as error:
            raise UsageError(
                f"the query needs more than {size(most)} of memory; ask for less, for example fewer steps"
            ) from error
        except duckdb.Error as error:
            raise UsageError(_sentence(str(error), views=views)) from error
    return _plain(answer)


def _duckdb() -> Any:
    try:
        return import_module("duckdb")
    except ModuleNotFoundError as error:
        raise MissingDependencyError("cannot answer SQL without duckdb: pip install 'traincope[sql]'") from error


def _named_views(connection: Any, text: str) -> list[str]:
    """Names of the views that the query reads, in the order of VIEWS.

    Raises UsageError unless the text is one SELECT that only reads these views and calls no forbidden function.
    """
    ((serialized,),) = connection.execute("select json_serialize_sql(?)", [text]).fetchall()
    parsed = json.loads(serialized)
    if parsed["error"] and parsed["error_type"] == "parser":
        raise UsageError(f"the query is not valid SQL: {parsed['error_message']}")
    if parsed["error"] or len(parsed["statements"]) != 1:
        raise UsageError(ONLY_READ)
    named: set[str] = set()
    defined: set[str] = set()
    for node in _nodes(parsed["statements"]):
        kind = str(node.get("type", ""))
        if kind.endswith("_NODE") and kind not in QUERY_NODES:
            raise UsageError(ONLY_READ)
        if kind == "TABLE_FUNCTION" and node["function"]["function_name"].lower() not in TABLE_FUNCTIONS:
            name = node["function"]["function_name"]
            raise UsageError(f"the function {name} is not allowed after FROM; allowed are {', '.join(TABLE_FUNCTIONS)}")
        if kind == "BASE_TABLE":
            named.add(node["table_name"].lower())
        if "cte_map" in node:
            defined.update(entry["key"].lower() for entry in node["cte_map"]["map"])
    for name in sorted(named - VIEWS.keys() - defined):
        raise UsageError(f"there is no view {name!r}; {_nearest(name, VIEWS)}")
    return [name for name in VIEWS if name in named]


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """Every object of the parsed query."""
    stack = [tree]
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            yield value
            stack += value.values()
        elif isinstance(value, list):
            stack += value


@contextmanager
def _limited(connection: Any, seconds: float | None) -> Iterator[None]:
    """Interrupt the query after that time."""
    timer = None if seconds is None else Timer(seconds, connection.interrupt)
    if timer is not None:
        timer.start()
    try:
        yield
    finally:
        if timer is not None:
            timer.cancel()


@contextmanager
def _bounded(most: int) -> Iterator[None]:
    """Let this process take at most so much more memory. DuckDB's own limit leaves out texts and lists of a row."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit = taken + most + RESERVE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit if soft == resource.RLIM_INFINITY else min(limit, soft), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _sentence(message: str, *, views: Sequence[str]) -> str:
    """DuckDB's message as one sentence, with the nearest names for an unknown column."""
    unknown = UNKNOWN_COLUMN.search(message)
    if unknown is not None:
        columns = [column.name for name in views for column in VIEWS[name].columns]
        of = f"{' and '.join(views)} have" if len(views) > 1 else f"{''.join(views) or 'the query'} has"
        return f"{of} no column {unknown[1]!r}; {_nearest(unknown[1], columns)}"
    return f"DuckDB cannot answer the query: {' '.join(message.partition('LINE 1')[0].split())}"


def _nearest(name: str, known: Iterable[str]) -> str:
    """The names most like `name`, or all of them if none is."""
    names = list(dict.fromkeys(known))
    near = get_close_matches(name.lower(), names, n=MAX_NEAREST)
    return f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(names)}"


def _plain(answer: pa.Table) -> pa.Table:
    """The answer with sums of integers as 64 bits where they fit. Raises UsageError if two columns have one name."""
    twice = [name for name, number in Counter(answer.column_names).items() if number > 1]
    if twice:
        raise UsageError(f"several columns of the answer are named {twice[0]!r}; name them apart with AS")
    for at, field in enumerate(answer.schema):
        if pa.types.is_decimal(field.type) and field.type.scale == 0:
            with suppress(pa.ArrowInvalid):
                answer = answer.set_column(at, field.name, answer.column(at).cast(pa.int64()))
    return answer
