"""Result of an examination: facts in sections."""

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """Meaning of a finding."""

    OK = "ok"
    NOTE = "note"
    """An optional part is absent, or a fact is worth knowing; recording works."""
    BAD = "bad"
    """Records were lost or would be lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One fact."""

    name: str
    state: State
    fact: str
    advice: str | None = None
    """Instruction; None if nothing needs to be done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Facts of one kind."""

    title: str
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """All sections."""

    subject: str
    sections: tuple[Section, ...]

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(finding for section in self.sections for finding in section.findings)

    @property
    def healthy(self) -> bool:
        """True unless a finding is bad."""
        return all(finding.state is not State.BAD for finding in self.findings)


def ok(name: str, fact: str) -> Finding:
    return Finding(name=name, state=State.OK, fact=fact)


def note(name: str, fact: str, *, do: str | None = None) -> Finding:
    return Finding(name=name, state=State.NOTE, fact=fact, advice=do)


def bad(name: str, fact: str, *, do: str) -> Finding:
    return Finding(name=name, state=State.BAD, fact=fact, advice=do)
