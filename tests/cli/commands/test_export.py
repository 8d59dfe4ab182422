"""`traincope export`: output files, existing files, and errors."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.exporters.otlp.receiver import collector
from tests.ingest.writing import complete, kineto
from traincope.cli.main import main
from traincope.errors import RunDirectoryError
from traincope.ingest import import_traces
from traincope.report.exports import export_names
from traincope_exporters.traces import folded

DEMO = Path(__file__).parents[3] / "sample_runs" / "format-1"


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


Export = Callable[..., Done]


@pytest.fixture
def export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Export:
    """The command, run in an empty directory."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> Done:
        with pytest.raises(SystemExit) as exit_:
            main(["export", *map(str, arguments)])
        assert isinstance(exit_.value.code, int)
        return Done(exit_.value.code, *capsys.readouterr())

    return run


@pytest.mark.parametrize("to", ["perfetto", "speedscope"])
def test_an_export_has_the_name_of_its_run_and_its_format(export: Export, tmp_path: Path, to: str) -> None:
    done = export(DEMO, "--to", to)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"format-1.{to}.json: open it with ")
    assert json.loads((tmp_path / f"format-1.{to}.json").read_text())
    assert [path.name for path in tmp_path.iterdir()] == [f"format-1.{to}.json"]


def test_without_options_it_lists_the_formats(export: Export, tmp_path: Path) -> None:
    """With the program that opens each, and the way to a copy without names. Nothing is written."""
    done = export(DEMO)
    assert (done.returncode, done.stderr) == (0, "")
    head, *lines = done.stdout.splitlines()
    assert head.startswith("traincope export /")
    formats = [line.split()[1] for line in lines if line.startswith("  --to ")]
    assert formats == list(export_names())
    assert lines[-1].split()[:3] == ["--redact", "-o", "COPY"]
    assert list(tmp_path.iterdir()) == []


def test_text_goes_to_the_standard_output_and_nothing_else_does(export: Export, tmp_path: Path) -> None:
    done = export(DEMO, "--to", "folded", "-o", "-")
    assert (done.returncode, done.stderr) == (0, "")
    assert all(line.rpartition(" ")[2].isdecimal() for line in done.stdout.splitlines())
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_is_replaced_only_with_overwrite(export: Export, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    done = export(DEMO, "--to", "folded", "-o", "mine")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "traincope export: mine already exists; give another path with -o, or --overwrite\n"
    assert (tmp_path / "mine").read_text() == "precious"
    assert export(DEMO, "--to", "folded", "-o", "mine", "--overwrite").returncode == 0
    assert "own;" in (tmp_path / "mine").read_text()


@pytest.mark.parametrize("more", [(), ("--overwrite",)])
def test_a_pipe_is_written_into_and_stays_a_pipe(export: Export, tmp_path: Path, more: tuple[str, ...]) -> None:
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(["cat", "pipe"], stdout=subprocess.PIPE, text=True) as reader:
        done = export(DEMO, "--to", "folded", "-o", "pipe", *more)
        read = reader.communicate()[0]
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert "own;" in read
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize("more", [(), ("--overwrite",)])
def test_a_device_is_never_replaced(export: Export, more: tuple[str, ...]) -> None:
    assert export(DEMO, "--to", "folded", "-o", "/dev/null", *more).returncode == 0
    done = export(DEMO, "--to", "parquet", "-o", "/dev/null", *more)
    assert (done.returncode, "/dev/null is a pipe or a device" in done.stderr) == (2, True)
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize(("to", "within"), [("folded", "."), ("parquet", "rank=0")])
def test_an_export_to_a_link_replaces_its_target(export: Export, tmp_path: Path, to: str, within: str) -> None:
    (tmp_path / "link").symlink_to("target")
    assert export(DEMO, "--to", to, "-o", "link").returncode == 0
    assert export(DEMO, "--to", to, "-o", "link").returncode == 2
    assert export(DEMO, "--to", to, "-o", "link", "--overwrite").returncode == 0
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target" / within).exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "target"]


def test_a_report_goes_through_a_link_and_into_a_device(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("target")
    for path in (tmp_path / "link", "/dev/null"):
        with pytest.raises(SystemExit, match="0"):
            main(["report", str(DEMO), "-o", str(path)])
    assert (tmp_path / "link").is_symlink()
    assert "WHERE THE TIME WENT" in (tmp_path / "target").read_text()
    assert Path("/dev/null").is_char_device()


def test_tables_are_a_directory_that_is_replaced_as_a_whole(export: Export, tmp_path: Path) -> None:
    assert export(DEMO, "--to", "parquet", "-o", "tables").returncode == 0
    (tmp_path / "tables" / "rank=9").mkdir()
    assert export(DEMO, "--to", "parquet", "-o", "tables").returncode == 2
    assert export(DEMO, "--to", "parquet", "-o", "tables", "--overwrite").returncode == 0
    assert sorted(path.name for path in (tmp_path / "tables").glob("rank=*")) == [f"rank={rank}" for rank in range(4)]
    assert [path.name for path in tmp_path.iterdir()] == ["tables"]


def test_a_directory_that_no_export_made_is_never_replaced(export: Export, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "work").touch()
    done = export(DEMO, "--to", "parquet", "-o", "home", "--overwrite")
    assert (done.returncode, done.stdout) == (2, "")
    assert "home was not made by an export, so it is not replaced" in done.stderr
    assert (tmp_path / "home" / "work").exists()


def test_a_failed_export_leaves_nothing(export: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Iterator[str]:
        yield "half"
        raise RunDirectoryError("the run went away")

    monkeypatch.setattr(folded, "EXPORT", replace(folded.EXPORT, pieces=fail))
    done = export(DEMO, "--to", "folded", "-o", "file")
    assert (done.returncode, done.stderr) == (4, "traincope export: the run went away\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--to", "flame"), 2, "unknown export 'flame'; known exports: perfetto"),
        (("--to", "parquet", "-o", "-"), 2, "this export writes a directory, which cannot go to standard output"),
        (("--to", "folded", "-o", "nowhere/file"), 2, "cannot write nowhere/file: No such file or directory"),
        (("--to", "folded", "-o", "."), 2, ". is a directory; give a file with -o"),
        (("--to", "folded", "--endpoint", "http://there"), 2, "--endpoint and --protocol are for --to otlp"),
        (("--to", "folded", "--redact"), 2, "redact first, then export the copy to folded"),
        (("--to", "otlp", "-o", "file"), 2, "otlp goes to a collector and not to a file"),
        (("--to", "otlp", "--endpoint", "there"), 2, "'there' is not the URL of a collector"),
        (("-o", "file"), 2, "-o needs a format, --to perfetto|perfetto-hosts|parquet|"),
        (("--redact",), 2, "give the new directory with -o"),
    ],
)
def test_bad_input_is_one_sentence(
    export: Export, tmp_path: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    done = export(DEMO, *arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("to", ["folded", "parquet", "perfetto-hosts"])
def test_a_run_that_cannot_be_read_is_not_taken_for_the_target(export: Export, tmp_path: Path, to: str) -> None:
    """A segment is a directory, which not even root can read as a file."""
    shutil.copytree(DEMO, tmp_path / "run")
    (segment, *_) = sorted((tmp_path / "run").glob("attempt-*/rank-00000/main-*"))
    segment.unlink()
    segment.mkdir()
    done = export("run", "--to", to, "-o", "target")
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.startswith(f"traincope export: cannot read {segment}: Is a directory")
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize("to", ["folded", "speedscope", "openmetrics", "parquet", "perfetto-hosts", "otlp"])
def test_exports_of_records_refuse_an_imported_trace(export: Export, tmp_path: Path, to: str) -> None:
    (tmp_path / "rank0.json").write_text(kineto([complete("gemm", "10", "40")]))
    import_traces([tmp_path / "rank0.json"], tmp_path / "run")
    done = export("run", "--to", to)
    assert (done.returncode, done.stdout) == (4, "")
    assert "kernel traces" in done.stderr
    assert "--to perfetto" in done.stderr
    assert export("run", "--to", "perfetto").returncode == 0


def test_a_directory_that_is_not_a_run_is_one_sentence(export: Export, tmp_path: Path) -> None:
    done = export(tmp_path, "--to", "folded")
    assert done.returncode == 4
    assert "is not a run directory" in done.stderr


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_collector_gets_the_run_and_the_command_prints_the_amount(export: Export, protocol: str) -> None:
    with collector(protocol) as receiver:
        done = export(DEMO, "--to", "otlp", "--endpoint", receiver.url, "--protocol", protocol)
    assert (done.returncode, done.stderr) == (0, "")
    num_spans = len(list(receiver.each_span()))
    assert done.stdout.startswith(f"sent {num_spans:,} spans, ")


def test_an_absent_collector_is_one_sentence_and_an_exit_code(export: Export) -> None:
    done = export(DEMO, "--to", "otlp", "--endpoint", "http://127.0.0.1:9", "--timeout", "0.5")
    assert (done.returncode, done.stdout) == (9, "")
    assert done.stderr.startswith("traincope export: no collector at http://127.0.0.1:9 (grpc) accepted the spans: ")
    assert done.stderr.count("\n") == 1


def test_the_command_line_loads_nothing_that_only_an_export_needs() -> None:
    code = "import sys, traincope.cli.main; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=150, check=True)
    assert not {"pyarrow", "opentelemetry", "grpc", "prometheus_client"} & set(done.stdout.split())
