"""What an examination says."""

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """How a finding is meant."""

    OK = "ok"
    NOTE = "note"
    """Something optional is absent, or worth knowing; recording works."""
    BAD = "bad"
    """Evidence was or would be lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One fact."""

    name: str
    state: State
    said: str
    advice: str | None = None
    """What to do; None where nothing needs doing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Facts of one kind."""

    title: str
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """All of them."""

    subject: str
    sections: tuple[Section, ...]

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(finding for section in self.sections for finding in section.findings)

    @property
    def healthy(self) -> bool:
        """Whether all is well but for what is optional."""
        return all(finding.state is not State.BAD for finding in self.findings)


def ok(name: str, said: str) -> Finding:
    return Finding(name=name, state=State.OK, said=said)


def note(name: str, said: str, *, do: str | None = None) -> Finding:
    return Finding(name=name, state=State.NOTE, said=said, advice=do)


def bad(name: str, said: str, *, do: str) -> Finding:
    return Finding(name=name, state=State.BAD, said=said, advice=do)
