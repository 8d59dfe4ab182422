"""The pages of docs/findings: every kind has one entry with four parts, and states the thresholds of the code."""

import re
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from traincope.analysis import FaultKind, FindingKind
from traincope.explanations import FOLDER, PARTS, Explanation, explanations

ROOT = Path(__file__).parents[1]
KINDS = sorted({kind.value for kind in (*FindingKind, *FaultKind)})
ENTRIES = list(dict.fromkeys(explanations().values()))

MIN_SHARE = "traincope.analysis.verdict.findings.MIN_SHARE"
LOSSES = "traincope.analysis.verdict.losses"
ANOMALIES = "traincope.analysis.faults.anomalies"
STATED = [
    *(
        (kind, MIN_SHARE, "at least {:.0%} of step time")
        for kind in (
            "exposed_transfer",
            "exposed_wait",
            "hot_expert",
            "data_bound",
            "gc",
            "compile",
            "sync",
            "unattributed",
            "checkpoint_stall",
            "launch_gap",
            "kernel_wait",
            "unfused_kernels",
        )
    ),
    *(
        (kind, f"traincope.analysis.ledger.host_shortages.{limit}", text)
        for kind, limit, text in (
            ("host_shortage", "MIN_RATIO", "at least {:.0%} of the time"),
            ("host_shortage", "BUSY", "at least {:.0%} of the cores"),
            ("host_shortage", "BUSY", "at least {:.0%} of the host's cores"),
            ("host_shortage", "MIN_OTHERS", "at least {:.0%} by processes"),
        )
    ),
    ("exposed_communication", MIN_SHARE, "from {:.0%} on"),
    ("pipeline_bubble", MIN_SHARE, "at least {:.0%} of step time"),
    ("healthy", MIN_SHARE, "below {:.0%} of step time"),
    ("exposed_memory", MIN_SHARE, "at least {:.0%}."),
    ("gpu_idle", MIN_SHARE, "at least {:.0%}."),
    ("unclassified_kernels", "traincope.analysis.verdict.traced_gpus.MOSTLY", "at least {:.0%} of the kernels' time"),
    ("hot_expert", f"{LOSSES}.hot_experts.HOT", "at least {} times the mean"),
    ("pipeline_bubble", f"{LOSSES}.pipeline_idle.AGREES", "within {:.0%} of the time"),
    ("link_errors", f"{ANOMALIES}.links.FEW", "by at least {}, and"),
    ("link_errors", f"{ANOMALIES}.links.FEW_PER_HOUR", "at least {} an hour"),
    ("link_errors", f"{ANOMALIES}.links.MIN_RETRANSMITTED", "from {:.1%} of what it sent"),
    ("evaluation", f"{LOSSES}.verdict_costs.LARGE_EVALUATION", "at least {:.0%} of the time after the start-up"),
    ("launch_bound", f"{LOSSES}.verdict_costs.LAUNCH_BOUND", "at least {:.0%} of step time"),
    ("unfused_kernels", "traincope.analysis.efficiency.work.ENOUGH_COVERAGE", "less than {:.0%} of the chains"),
    ("straggler", "traincope.analysis.stragglers.persistence.MATERIAL", "at least {:.0%} of a step"),
    ("straggler", "traincope.analysis.stragglers.persistence.MAX_CHANCE", "a chance of at most {:.4f}"),
    ("straggler", "traincope.analysis.stragglers.persistence.FEW_STEPS", "About {} recorded steps"),
    ("slowdown", "traincope.analysis.stragglers.slowdown.STRAGGLING_RATIO", "ratio is at least {}"),
    ("slowdown", "traincope.analysis.stragglers.slowdown.SLOWEST_PERCENT", "slowest {}% of the workers"),
    ("slowdown", "traincope.analysis.stragglers.slowdown.CORRELATED", "correlate by at least {}"),
    ("slow_step", f"{ANOMALIES}.slowness.SIGMAS", "by {:.0f} spreads"),
    ("slow_step", f"{ANOMALIES}.slowness.SCALE", "{} times the median absolute deviation"),
    ("slow_step", f"{ANOMALIES}.slowness.MIN_STEPS", "At least {} counted steps"),
    ("slow_step", f"{ANOMALIES}.slowness.MIN_SPELL", "At least {} slow steps"),
    ("slow_step", f"{ANOMALIES}.slowness.MAX_DISTANCE", "at most {} apart"),
    ("slow_step", "traincope.analysis.stragglers.stretches.MIN_RATIO", "from {} times its usual computation"),
    ("slow_step", "traincope.analysis.stragglers.stretches.MIN_STEPS", "for at least {} steps"),
    ("slow_step", "traincope.analysis.stragglers.stretches.SIGMAS", "by {:.0f} standard deviations"),
    ("step_time_change", f"{ANOMALIES}.step_changes.MAX_PROBABILITY", "probability below {}"),
    ("step_time_change", f"{ANOMALIES}.step_changes.MIN_STEPS", "at least {} steps"),
    ("step_time_change", f"{ANOMALIES}.step_changes.MIN_RATIO", "at least {:.0%} of the shorter"),
    ("stall", "traincope.analysis.faults.hangs.evidence.patience.STALL_MULTIPLE", "for {} times the longest step"),
    ("stall", "traincope.analysis.verdict.findings.MIN_SHARE", "at least {:.0%} of the run's time"),
    ("spike", f"{ANOMALIES}.logged_values.WINDOW", "median of the {} values before it"),
    ("spike", f"{ANOMALIES}.logged_values.SIGMAS", "by {:.0f} spreads"),
    ("spike", f"{ANOMALIES}.logged_values.MIN_RISE", "by {:.0%} of the median"),
    ("spike", f"{ANOMALIES}.logged_values.FRESH", "each of the {} values before"),
    ("spike", f"{ANOMALIES}.logged_values.SCALE", "{} times the median absolute deviation"),
    ("spike", f"{ANOMALIES}.logged_values.MIN_VALUES", "At least {} values"),
    ("memory_growth", "traincope.analysis.memory.growth.MIN_SAMPLES", "at least {} samples"),
    ("memory_growth", "traincope.analysis.memory.growth.MIN_STEPS", "at least {} steps"),
    ("memory_growth", "traincope.analysis.memory.growth.GROWTH_RATIO", "at least {:.0%} of the first part"),
    ("checkpoint_cadence", "traincope.analysis.verdict.checkpoint_cadence.MIN_GAIN", "at least {:.0%} of all time"),
    ("killed_rank", "traincope.analysis.faults.endings.MEMORY_FULL", "at least {:.0%} of its memory"),
    ("throttled", "traincope.record.gpu.hardware.POLL_SECONDS", "every {:.0f} seconds"),
    ("xid", "traincope.record.gpu.hardware.MAX_EVENTS_PER_NAME", "At most {:,} events"),
    ("event", "traincope.analysis.faults.marks.MAX_EVENTS", "{} events are shown"),
]
"""Kind, constant, and the words of the entry or of its page that contain it."""
STATED_NS = [
    ("hang", "traincope.analysis.faults.hangs.evidence.patience.FLOOR_NS", 1e9, "{:.0f} seconds at least"),
    ("stall", "traincope.analysis.faults.hangs.evidence.patience.STALL_NS", 1e9, "for {:.0f} seconds"),
    ("hang", "traincope.live.node.noticing.watchdog.END_NS", 60e9, "after {:.0f} minutes"),
    ("lost_host", "traincope.analysis.faults.lost_hosts.SILENCE_NS", 1e9, "at least {:.0f} seconds"),
    ("killed_rank", "traincope.analysis.verdict.rank_failures.CLEARLY_EARLIER_NS", 1e6, "at least {:.0f} ms"),
]


def constant(name: str) -> float:
    module, _, last = name.rpartition(".")
    return float(getattr(import_module(module), last))


def words(kind: str) -> str:
    """The page of a kind, on one line, with percentages as Python writes them."""
    page = ROOT / FOLDER / explanations()[kind].page
    return re.sub(r"\s+", " ", page.read_text()).replace(" %", "%")


def test_every_installation_has_the_pages() -> None:
    """The package links to the folder, and the wheel takes the link's files."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert (ROOT / "traincope" / "findings").resolve() == ROOT / FOLDER
    assert "findings/*.md" in project["tool"]["setuptools"]["package-data"]["traincope"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_an_entry(kind: str) -> None:
    assert kind in explanations()


def test_no_kind_has_two_entries_and_every_entry_has_a_kind() -> None:
    explained = [kind for entry in ENTRIES for kind in entry.kinds]
    assert sorted(explained) == KINDS
    assert len({entry.place for entry in ENTRIES}) == len(ENTRIES)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.kinds[0])
def test_an_entry_has_the_four_parts_in_order(entry: Explanation) -> None:
    assert tuple(re.findall(r"^\*\*([^*]+)\.\*\*", entry.text, re.MULTILINE)) == PARTS
    assert all(entry.part(name) for name in PARTS)
    assert re.search(r"^1\. ", entry.part("What to do"), re.MULTILINE)
    assert "**" not in entry.part("What to do")
    assert "](" not in entry.text


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.kinds[0])
def test_its_place_is_a_heading_of_a_page(entry: Explanation) -> None:
    page, _, anchor = entry.place.partition("#")
    headings = re.findall(r"^## (.*)$", (ROOT / page).read_text(), re.MULTILINE)
    assert [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings].count(anchor) == 1


@pytest.mark.parametrize(("kind", "name", "phrase"), STATED)
def test_a_stated_threshold_is_the_constant_of_the_code(kind: str, name: str, phrase: str) -> None:
    value = constant(name)
    assert phrase.format(int(value) if value.is_integer() and "f}" not in phrase else value) in words(kind)


@pytest.mark.parametrize(("kind", "name", "unit", "phrase"), STATED_NS)
def test_a_stated_time_is_the_constant_of_the_code(kind: str, name: str, unit: float, phrase: str) -> None:
    assert phrase.format(constant(name) / unit) in words(kind)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.kinds[0])
def test_the_commands_of_an_entry_exist(entry: Explanation) -> None:
    from traincope.cli.main import COMMANDS

    assert set(re.findall(r"`traincope ([a-z-]+)", entry.text)) <= COMMANDS.keys()
