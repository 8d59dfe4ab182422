"""SQL: answers, the sandbox around it, and sentences for mistakes."""

import resource
import sys
from decimal import Decimal
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pytest

import traincope.tables.query
from tests.exporters.runs import two_ranks
from traincope.errors import MissingDependencyError, UsageError
from traincope.tables.query import named_runs, run_query
from traincope.tables.rows import json_rows
from traincope.tables.sources import Sources

SAMPLES = Path(__file__).parents[2] / "sample_runs"


@pytest.fixture(scope="module")
def run() -> Sources:
    return Sources(two_ranks, name="hand-made")


def answer(run: Sources, query: str) -> list[dict[str, object]]:
    return run_query([run], query).to_pylist()  # type: ignore[no-any-return]


def test_a_query_joins_views_and_sums_exactly(run: Sources) -> None:
    """Rank 0 waits 200 ns of its stall of 300 in each of the two counted steps; rank 1 waits for nothing."""
    query = (
        "select l.rank, sum(l.ns) as ns, any_value(s.clock) as clock from ledger l join steps s using (run, rank, step)"
        " where l.term = 'exposed_wait[tp]' and l.counted group by l.rank order by l.rank"
    )
    assert answer(run, query) == [{"rank": 0, "ns": 400, "clock": "host"}, {"rank": 1, "ns": 0, "clock": "host"}]
    assert run_query([run], query).schema.field("ns").type == "int64"


def test_decimals_are_numbers_in_json() -> None:
    values = pa.table({"a": pa.array([Decimal("2.50"), Decimal("3.00"), None], type=pa.decimal128(10, 2))})
    assert [row["a"] for row in json_rows(values)] == [2.5, 3, None]


def test_collectives_know_who_came_last(run: Sources) -> None:
    query = "select rank, bytes, transfer_ns, last_rank, counted from collectives where step = 1 order by rank"
    common = {"bytes": 4096, "transfer_ns": 100, "last_rank": 1, "counted": True}
    assert answer(run, query) == [{"rank": 0, **common}, {"rank": 1, **common}]


def test_several_runs_are_told_apart_by_their_names(run: Sources) -> None:
    other = Sources(lambda: two_ranks(scale=2), name="twice")
    table = run_query([run, other], "select run, max(wall_ns) as ns from steps group by run order by run")
    assert table.to_pylist() == [{"run": "hand-made", "ns": 1000}, {"run": "twice", "ns": 2000}]


def test_only_the_named_views_are_made() -> None:
    """Views that need no analysis make none."""
    made = Sources(two_ranks, name="x", analyze=lambda _: pytest.fail("the analysis is not needed"))
    assert answer(made, "with a as (select count(*) as n from Collectives) select n from a") == [{"n": 4}]
    assert answer(made, "select count(*) as n from records where kind = 'step'") == [{"n": 6}]


@pytest.mark.parametrize(
    "query",
    [
        "select * from read_csv('{secret}')",
        "select * from read_text('{secret}')",
        "select * from read_blob('{secret}')",
        "select * from read_json('{secret}')",
        "select * from read_parquet('{secret}')",
        "select * from parquet_scan('{secret}')",
        "select * from glob('{folder}/*')",
        "select * from sniff_csv('{secret}')",
        "select * from '{secret}'",
        'select * from "{secret}"',
        "select count(*) from steps, read_text('{secret}')",
        "select * from query('select * from read_text(''{secret}'')')",
        "select * from json_execute_serialized_sql(json_serialize_sql('select * from read_text(''{secret}'')'))",
        "select * from (from (values (1)) where exists (select * from glob('{folder}/*')))",
        "with x as (insert into steps values (1) returning *) select * from x",
        "select * from enable_logging(storage='file', storage_path='{folder}/written')",
        "select * from enable_profiling(save_location='{folder}/written')",
        "select * from duckdb_settings()",
        "select * from information_schema.tables",
        "select * from python_arrow_scan(1)",
        "call enable_logging()",
        "explain analyze select 1",
        "copy (select 1) to '{folder}/written'",
        "copy steps to '{folder}/written'",
        "export database '{folder}/written'",
        "attach '{folder}/written' as other",
        "create table mine as select 1",
        "insert into steps values (1)",
        "delete from steps",
        "drop view steps",
        "install httpfs",
        "load httpfs",
        "set enable_external_access = true",
        "reset lock_configuration",
        "pragma enable_profiling",
        "call pragma_version()",
        "select 1; select 2",
        "select * from duckdb_secrets(); copy (select 1) to '{folder}/written'",
        "",
        "  -- nothing",
    ],
)
def test_a_query_can_only_read_the_views(run: Sources, tmp_path: Path, query: str) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("password\nhunter2\n")
    with pytest.raises(UsageError) as refused:
        run_query([run], query.format(secret=secret, folder=tmp_path))
    assert "hunter2" not in str(refused.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["secret.csv"]


def test_settings_of_the_sandbox_are_final(run: Sources) -> None:
    query = "select current_setting('enable_external_access') as files, current_setting('temp_directory') as folder"
    assert answer(run, query) == [{"files": False, "folder": ""}]


@pytest.mark.parametrize("query", ["select * from secret_frame", "select * from pa", "select getenv('HOME')"])
def test_a_query_does_not_see_this_process(run: Sources, query: str) -> None:
    secret_frame = run_query([run], "select 1 as a")
    with pytest.raises(UsageError):
        run_query([run], query)
    assert secret_frame.num_rows == 1


@pytest.mark.parametrize(
    "function", ["arrow_scan(1, 2, 3)", "arrow_scan_dumb(1, 2, 3)", "pandas_scan(1)", "python_map_function(1)"]
)
def test_a_pointer_from_a_query_is_refused(run: Sources, function: str) -> None:
    with pytest.raises(UsageError):
        run_query([run], f"select * from {function}")


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("select * from stepz", "there is no view 'stepz'; did you mean steps?"),
        ("select * from banana", "there is no view 'banana'; known are steps, ranks, ledger"),
        ("select wall from steps", "steps has no column 'wall'; did you mean wall_ns?"),
        ("select s.walls_ns from steps s", "has no column 'walls_ns'; did you mean wall_ns?"),
        ("select 1 as a from steps join ledger using (run) where nss > 0", "no column 'nss'; did you mean ns?"),
        ("selec 1", "the query is not valid SQL: syntax error at or near"),
        ("select 'x'::integer from steps", "DuckDB cannot answer the query: Conversion Error"),
        ("select 1 as a, 2 as a", "several columns of the answer are named 'a'; name them apart with AS"),
    ],
)
def test_a_mistake_is_one_sentence(run: Sources, query: str, sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        run_query([run], query)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_slow_query_ends(run: Sources) -> None:
    with pytest.raises(UsageError, match=r"took more than 0.2 s"):
        run_query([run], "select count(*) from range(100000) a, range(100000) b, range(1000) c", seconds=0.2)


@pytest.mark.parametrize("query", ["select list(i) from range(9000000) t(i)", "select repeat('a', 1500000000) a"])
def test_a_query_that_needs_too_much_memory_is_one_sentence(
    run: Sources, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 256 MiB, a query may take 64. DuckDB itself counts no memory of a single text."""
    monkeypatch.setattr(traincope.tables.query, "host_memory_bytes", lambda: 256 << 20)
    before = resource.getrlimit(resource.RLIMIT_AS)
    with pytest.raises(UsageError, match=r"the query needs more than 64.0 MiB of memory; ask for less"):
        run_query([run], query)
    assert resource.getrlimit(resource.RLIMIT_AS) == before
    assert answer(run, "select 1 as a") == [{"a": 1}]


def test_runs_have_the_names_of_their_directories(tmp_path: Path) -> None:
    other = tmp_path / "demo"
    other.symlink_to(SAMPLES / "demo-3d")
    demo = (SAMPLES / "demo").resolve()
    assert named_runs([demo]) == {"demo": demo}
    (tmp_path / "copy" / "demo").mkdir(parents=True)
    (tmp_path / "copy" / "demo" / "run.json").write_bytes((demo / "run.json").read_bytes())
    copy = (tmp_path / "copy" / "demo").resolve()
    assert named_runs([demo, copy]) == {str(demo): demo, str(copy): copy}
    with pytest.raises(UsageError, match="is given twice"):
        named_runs([demo, SAMPLES / "demo-3d" / ".." / "demo"])


def test_without_duckdb_the_error_names_the_extra(run: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'traincope\[sql\]'"):
        run_query([run], "select 1")
