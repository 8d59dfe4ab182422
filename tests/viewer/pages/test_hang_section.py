"""Hangs on a page, from runs made by hand."""

from itertools import pairwise

from tests.analysis.faults.hangs.test_stops import LAST_NS, analysis, light, stuck, victim
from tests.analysis.faults.hangs.test_stops import WAITING as IN_COMMUNICATION
from traincope.analysis import Analysis
from traincope.viewer.pages.hang_section import hang_section
from traincope.viewer.view import View


def shown(result: Analysis) -> tuple[list[str], list[str]]:
    """Texts of the section, and addresses of its links."""
    section = hang_section(result, view=View(page="faults"), origin_ns=0)
    return texts(section), [part.href for part in section._traverse() if hasattr(part, "href")]


def texts(part: object) -> list[str]:
    """All texts of a component, in order."""
    if isinstance(part, str):
        return [part]
    children = part if isinstance(part, list | tuple) else getattr(part, "children", None) or ()
    return [text for child in (children if isinstance(children, list | tuple) else [children]) for text in texts(child)]


def test_the_culprit_its_line_and_what_to_do_are_shown() -> None:
    lines, links = shown(analysis(victim(0), stuck(1)))
    pairs = dict(pairwise(lines))
    assert (pairs["culprits"], pairs["victims"], pairs["in"]) == ("rank 1", "rank 0", "all_reduce on dp")
    assert (pairs["stood at"], pairs["step"], pairs["kind"]) == ("train.py:9", "5", "stuck, confidence high")
    assert (pairs["lasted"], pairs["noticed by the agent"]) == ("34.0 s at least", "after 34.0 s")
    assert pairs["Do: "] == "Look at train.py:9 (process 1001 on host-boot). It may go on by itself."
    assert "wait (threading.py:327)\nload (train.py:9)\nmain (train.py:41)" in lines
    (link,) = links
    assert f"at={LAST_NS}" in link


def test_an_unknown_culprit_is_called_so_and_has_no_stack() -> None:
    lines, _ = shown(analysis(light(0, IN_COMMUNICATION), light(1, IN_COMMUNICATION)))
    assert dict(pairwise(lines))["culprits"] == "unknown"
    assert not any(line.startswith("Stack of") for line in lines)
