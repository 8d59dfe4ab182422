"""RECORDING of imported runs."""

from pathlib import Path

from tests.virtual_gpu.kineto import write_traces
from tests.virtual_gpu.programs import PROGRAMS
from traincope.analysis import analyze
from traincope.ingest import import_traces
from traincope.report.document.document import to_document
from traincope.report.sections.recording import recording
from traincope.report.sections.values import sentences
from traincope.timeline import open_run


def shown(name: str, folder: Path) -> str:
    import_traces(write_traces(PROGRAMS[name], folder / "traces"), folder / "run")
    document = to_document(analyze(open_run(folder / "run")))
    return "\n".join(sentences(document, recording(document)))


def test_an_imported_pipeline_without_annotations_tells_why_it_has_no_bubble(tmp_path: Path) -> None:
    assert "the pipeline's bubble is unknown" in shown("1F1B", tmp_path)


def test_a_run_without_a_pipeline_does_not_mention_the_bubble(tmp_path: Path) -> None:
    assert "bubble" not in shown("exposed collective", tmp_path)
