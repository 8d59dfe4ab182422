"""The answer of `traincope preflight` in its formats."""

import json

from traincope.cli.preflight.options import HOSTS
from traincope.cli.screen import make_console
from traincope.preflight.document import to_document
from traincope.preflight.judging.judgement import Judgement
from traincope.preflight.measurements import Measurements
from traincope.preflight.text import host_line, job_lines, render


def written(judgement: Judgement, measured: Measurements, *, format: str, width: int | None = None) -> str:
    """The answer as text. `width`: columns of the terminal that shows it; None: of this process's."""
    if format == "json":
        return json.dumps(to_document(judgement, measured), indent=2) + "\n"
    if format == HOSTS:
        return "".join(f"{line}\n" for line in (*map(host_line, judgement.hosts), *job_lines(judgement)))
    console = make_console(width=width)
    with console.capture() as captured:
        render(judgement, measured, console)
    return captured.get()
