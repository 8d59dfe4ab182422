"""The grade of a verdict: right, partly, unknown or wrong, as the given judge grades."""

import re
from typing import Any

from evaluation.score.reports.truths import Truth

RIGHT, PARTLY, UNKNOWN, WRONG = "right", "partly", "unknown", "wrong"
ACCUSES = re.compile(r"straggler|failed_rank|killed_rank|hang|mismatch|lost_host|early_exit")
"""Kinds that say that the named ranks are to blame."""
GAIN_TOLERANCE = 0.2
NOT_KNOWN = "unknown"

Finding = dict[str, Any]


def grade(verdict: list[Finding], truth: Truth, *, gain: float | None = None) -> str:
    """Return the grade of a verdict as JSON. `gain`: share of the run that the cause took, if the program wrote it.

    Right: the findings name exactly the culprits, and their words and kind name the cause. Partly: the culprits without
    the cause. Unknown: no rank is accused, although one is to blame. Wrong: another rank, or what the truth forbids.
    That other processes keep the cores busy may be said first: the score may share its machine.
    """
    graded = _grade(verdict, truth, gain)
    of_the_job = [finding for finding in verdict if not _is_load(finding)]
    return graded if graded in (RIGHT, WRONG) or not of_the_job else _grade(of_the_job, truth, gain)


def _grade(verdict: list[Finding], truth: Truth, gain: float | None) -> str:
    seen = verdict[: truth.top]
    if not seen or any(_is_forbidden(finding, truth) for finding in seen):
        return WRONG
    named = any(_ranks(finding) == truth.ranks and _is_known(finding) for finding in seen)
    accused = {
        rank for finding in seen if ACCUSES.search(finding["kind"]) and _is_known(finding) for rank in _ranks(finding)
    }
    if not truth.ranks and accused:
        return WRONG
    if named or not truth.ranks:
        return RIGHT if any(_is_cause(finding, truth, gain) for finding in seen) else PARTLY
    if accused:
        return WRONG
    all_unknown = not any(_is_known(finding) for finding in seen)
    return RIGHT if all_unknown and truth.unknown_ok else UNKNOWN


def has_changed(bare: dict[str, str], recorded: dict[str, str]) -> bool:
    """Return whether a rank's losses differ. A rank that was stopped may have written fewer lines in either run."""
    return any(
        not (ours.startswith(losses) or losses.startswith(ours))
        for name, losses in bare.items()
        for ours in [recorded.get(name, "")]
    )


def text(finding: Finding) -> str:
    return " ".join(str(finding.get(key) or "") for key in ("kind", "evidence", "advice", "summary"))


def _is_cause(finding: Finding, truth: Truth, gain: float | None) -> bool:
    is_named = re.search(truth.words, text(finding), re.IGNORECASE) and re.search(truth.kind, finding["kind"])
    if not truth.gain or not is_named:
        return bool(is_named)
    stated = finding.get("estimated_gain_ratio")
    return gain is not None and stated is not None and abs(stated - gain) <= GAIN_TOLERANCE * gain


def _is_forbidden(finding: Finding, truth: Truth) -> bool:
    words, kind = truth.forbid_words, truth.forbid_kind
    return bool((words and re.search(words, text(finding))) or (kind and re.search(kind, finding["kind"])))


def _is_load(finding: Finding) -> bool:
    return finding["kind"] == "host_shortage" and "other processes" in finding["evidence"]


def _ranks(finding: Finding) -> tuple[int, ...]:
    return tuple(finding.get("ranks") or ())


def _is_known(finding: Finding) -> bool:
    return bool(finding.get("confidence") != NOT_KNOWN)
