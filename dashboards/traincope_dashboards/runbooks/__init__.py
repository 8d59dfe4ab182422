"""What to do when an alert fires: a page each, named as the alert, which Grafana shows as a dashboard of text."""

import re
from importlib.resources import files

UID = "traincope-runbook-"
"""What the uid of a page begins with."""


def names() -> list[str]:
    """Of all pages, e.g. "slow-host"."""
    return sorted(one.name.removesuffix(".md") for one in files(__name__).iterdir() if one.name.endswith(".md"))


def url(name: str, *, grafana: str) -> str:
    return f"{grafana}/d/{UID}{name}"


def title(name: str) -> str:
    """The page's heading."""
    return _text(name).partition("\n")[0].removeprefix("# ")


def markdown(name: str, *, grafana: str) -> str:
    """The page without its heading; links to other pages lead to their dashboards."""
    body = _text(name).partition("\n")[2].lstrip()
    return re.sub(r"\]\(([a-z-]+)\.md\)", lambda link: f"]({url(link[1], grafana=grafana)})", body)


def _text(name: str) -> str:
    return (files(__name__) / f"{name}.md").read_text(encoding="utf-8")
