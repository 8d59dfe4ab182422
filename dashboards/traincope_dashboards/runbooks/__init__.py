"""Runbooks: one page per alert, named like the alert. Grafana shows them as dashboards of text.

This file reads the pages; the alerts are in `rules/alerts`. An alert about a kind of fault does not repeat what to do:
its page has the command `traincope explain KIND`, in whose place Grafana shows that part of the kind's explanation.
"""

import re
from importlib.resources import files

from traincope.explanations import explanations

UID = "traincope-runbook-"
"""Prefix of the uid of a page."""
TODO = "What to do"


def names() -> list[str]:
    """Names of all pages, e.g. "slow-host"."""
    return sorted(page.name.removesuffix(".md") for page in files(__name__).iterdir() if page.name.endswith(".md"))


def url(name: str, *, grafana: str) -> str:
    return f"{grafana}/d/{UID}{name}"


def title(name: str) -> str:
    """The page's heading."""
    return _text(name).partition("\n")[0].removeprefix("# ")


def markdown(name: str, *, grafana: str) -> str:
    """The page without its heading; links to other pages lead to their dashboards."""
    body = re.sub(r"^    traincope explain (\w+)$", _explained, _text(name).partition("\n")[2].lstrip(), flags=re.M)
    return re.sub(r"\]\(([a-z-]+)\.md\)", lambda link: f"]({url(link[1], grafana=grafana)})", body)


def _explained(command: re.Match[str]) -> str:
    entry = explanations()[command[1]]
    return f"**{entry.title}** (`{command[1]}`)\n\n{entry.part(TODO)}\n"


def _text(name: str) -> str:
    return (files(__name__) / f"{name}.md").read_text(encoding="utf-8")
