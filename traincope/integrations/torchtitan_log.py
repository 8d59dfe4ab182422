"""Handler for the structured log of torchtitan 0.3."""

import logging
import threading
from typing import Any

import traincope
from traincope.record.instrumentation.guard import guard

BEGIN, END = "_start", "_end"
VALUE = "metric_value"


def torchtitan_log(*, structured_logger: logging.Logger, **_: Any) -> None:
    """Record the spans and the values of the structured log, in the run that records.

    >>> os.environ["TITAN_STRUCT_LOGGER_HANDLERS"] = "traincope.integrations.torchtitan_log"

    torchtitan calls it when it starts its log. It then calls no handler that the variable does not name.
    """
    structured_logger.addHandler(SpanHandler())


class SpanHandler(logging.Handler):
    """Records each span under its name. Moments without a duration are not recorded."""

    def __init__(self) -> None:
        super().__init__()
        self._open: dict[tuple[object, ...], list[traincope.span]] = {}
        """Spans by thread, asyncio's task and name: each of these ends in the reverse order of its begin."""
        self._take = guard(self._take_record)

    def emit(self, record: logging.LogRecord) -> None:
        self._take(record)

    def _take_record(self, record: Any) -> None:
        kind: str = record.log_type_name
        name = kind.removesuffix(BEGIN if kind.endswith(BEGIN) else END)
        place = threading.get_ident(), record.task_name, name
        if kind == VALUE:
            traincope.log(**{record.event_name: record.value})
        elif kind.endswith(BEGIN):
            span = traincope.span(name)
            self._open.setdefault(place, []).append(span)
            span.__enter__()
        elif kind.endswith(END) and place in self._open:
            spans = self._open[place]
            spans.pop().__exit__(None, None, None)
            if not spans:
                del self._open[place]
