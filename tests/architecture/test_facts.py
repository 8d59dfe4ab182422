"""Facts that the pages state are those of the code."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from evaluation.truth.formulas import published
from evaluation.truth.formulas.trainings import trainings
from evaluation.truth.formulas.unfitted import bloom_search
from evaluation.truth.layouts.trainings import PREDICTED
from evaluation.truth.machines.clocks import TRIALS
from evaluation.truth.memory.cases import CASES
from evaluation.truth.pipelines.bubble import cases
from evaluation.truth.trainings.gains import CURES
from evaluation.truth.trainings.predicted import CHANGES
from evaluation.truth.trainings.what_if import QUESTIONS
from evaluation.truth.trainings.workloads import WORKLOADS
from tests.gpu.test_operations import CALLS
from tests.release.test_base import NEED
from traincope.analysis import confidence
from traincope.analysis.diff.diff import DEFAULT_THRESHOLD_RATIO, LEVEL
from traincope.analysis.diff.significance import BLOCKS, MIN_BLOCK_STEPS
from traincope.analysis.faults.anomalies import logged_values, slowness, step_changes
from traincope.analysis.faults.hangs.evidence import patience
from traincope.analysis.memory import growth
from traincope.analysis.reliability.rolling import MAX_POINTS
from traincope.analysis.stragglers import persistence, slowdown
from traincope.analysis.verdict import rank_failures
from traincope.analysis.verdict.findings import MIN_SHARE
from traincope.cli.commands import sql
from traincope.cli.launch.hang_exit import GRACE_SECONDS
from traincope.errors import (
    BROKEN_RULE,
    LEFT_OUT,
    REGRESSION,
    CheckpointError,
    HangError,
    MissingDependencyError,
    VersionError,
)
from traincope.events import BLOCK_STEPS, EARLY_STEPS
from traincope.live.node import agent
from traincope.live.node.noticing.watchdog import END_NS
from traincope.live.node.reducing import MAX_DATA_BYTES
from traincope.live.node.retention import ROW_THINNING_NS, STEP_STRIDE
from traincope.live.peers.copies import histories
from traincope.live.peers.copies.witnessing import MAX_HOSTS
from traincope.live.peers.peers import NUM_WITNESSES
from traincope.live.peers.settings import DEFAULT_PORT
from traincope.live.serve import so_far, tile_handoff
from traincope.live.shipping import agent_shipping, folding, limits, loop
from traincope.live.shipping.limits import DEFAULT_BYTES_PER_SECOND
from traincope.live.tree.places import FANOUT
from traincope.mcp import tools
from traincope.mcp.bounded import MAX_CHARACTERS, MAX_TEXT
from traincope.record.compute.flops import MAX_INTERVAL
from traincope.record.gpu import hardware
from traincope.record.session.ending import MAX_MESSAGE_CHARACTERS
from traincope.record.session.options import DEFAULT_DISK_BUDGET
from traincope.record.session.sampling import DEFAULT_BUDGET, FIRST_BLOCKS
from traincope.record.state import non_finite
from traincope.record.state.tensors import MAX_TENSORS
from traincope.store.places.node_local import MIN_FREE_BYTES
from traincope.store.places.ship_notes import DEFAULT_WAIT_SECONDS
from traincope.store.segments.segments import RECORD_DTYPE
from traincope.store.side_tables.row_thinning import HOUR_NS, PLAIN_ROWS
from traincope.summaries.last_records import LAST_RECORDS
from traincope.summaries.reading import MANY_RANKS
from traincope.summaries.rows import NEWEST_ROWS
from traincope.tables.faults import FAULTS_VIEW
from traincope.timeline.building import MAX_EARLIER_BYTES
from traincope_dashboards.boards import BOARDS
from traincope_dashboards.build import RULES, Settings, build

ROOT = Path(__file__).parents[2]
PAGES = {
    str(page.relative_to(ROOT)): page.read_text()
    for page in (ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md")))
}
WORDS = {"eight": 8}
SECOND_NS, MINUTE_NS = 1_000_000_000, 60_000_000_000


def rules(kind: str) -> int:
    """Number of rules with this key in the built files."""
    files = [text for name, text in build(Settings()).items() if name.startswith(RULES)]
    groups = [group for text in files for group in (yaml.safe_load(text) or {}).get("groups", ())]
    return sum(kind in rule for group in groups for rule in group["rules"])


FACTS: dict[str, tuple[int, Callable[[], float]]] = {
    r"(\w+)(?: Grafana)? dashboards, \d+ recording rules": (2, lambda: len(BOARDS)),
    r"(\d+) recording rules\s+and": (2, lambda: rules("record")),
    r"recording rules\s+and\s+(\d+)\s+alerts": (2, lambda: rules("alert")),
    r"bubble of (\d+) real pipelines": (1, lambda: len(list(cases()))),
    r"of hosts in (\d+) simulated runs": (1, lambda: TRIALS),
    r"peak memory of (?:real ranks in )?(\d+) (?:real )?trainings": (1, lambda: len(CASES)),
    r"steps of (?:real trainings in )?(\d+) layouts": (1, lambda: len(PREDICTED)),
    r"`traincope diff`.*exits with code (\d+)|It\s+exits with code (\d+) if\s+there": (2, lambda: REGRESSION),
    r"[Rr]uns?\s+of\s+fewer\s+than\s+(\d+)\s+steps|all of fewer than (\d+) steps": (
        2,
        lambda: BLOCKS * MIN_BLOCK_STEPS,
    ),
    r"cut into (\d+) blocks": (2, lambda: BLOCKS),
    r"evident at p <= 0\.0(\d)": (1, lambda: round(100 * LEVEL)),
    r"threshold: (\d+) % of a step": (1, lambda: round(100 * DEFAULT_THRESHOLD_RATIO)),
    r"(\d+) (?:published numbers|numbers that papers print)": (2, lambda: sum(row.printed for row in published.rows())),
    r"`make truth-bubble` measures (\d+) pipelines|`make truth-bubble` \((\d+) pipelines": (
        1,
        lambda: len(list(cases())),
    ),
    r"`make truth` \((\d+) trainings": (1, lambda: len(WORKLOADS)),
    r"if really made \((\d+) changes": (1, lambda: len(QUESTIONS)),
    r"fifth of the gain \((\d+) settings": (1, lambda: len(CHANGES)),
    r"gains of (\w+) changes": (1, lambda: len(CHANGES)),
    r"settings, (\d+) findings\)": (1, lambda: len(CURES)),
    r"(\d+) kinds of call over NCCL": (2, lambda: len(CALLS)),
    r"(?:After|blocks) \(?(\d+) steps|between steps, after (\d+) steps": (2, lambda: FIRST_BLOCKS * BLOCK_STEPS),
    r"job that hangs[^|\n]{,60}with exit code (\d+)": (4, lambda: HangError.exit_code),
    r"rest is imported, and the exit code is (\d+)": (1, lambda: LEFT_OUT),
    r"The exit code is (\d+) if a problem": (1, lambda: BROKEN_RULE),
    r"Errors of checkpoints have exit code (\d+)": (1, lambda: CheckpointError.exit_code),
    r"lacks its extra exits with code (\d+)": (1, lambda: MissingDependencyError.exit_code),
    r"refuses a newer format in one sentence, with exit\s+code (\d+)": (1, lambda: VersionError.exit_code),
    r"on (\d+) published trainings|step of (\d+)\s+(?:published trainings|trainings in the tables)": (
        2,
        lambda: len([*trainings(), *bloom_search()]),
    ),
    r"after (\d+) seconds by SIGKILL": (1, lambda: GRACE_SECONDS),
    r"job (?:ends )?after (\d+) minutes of a hang|with evidence ends the job after (\d+) minutes": (
        2,
        lambda: END_NS / MINUTE_NS,
    ),
    r"and after (\d+) seconds at least\. A": (1, lambda: patience.FLOOR_NS / SECOND_NS),
    r"and (\d+) seconds at least\. The first": (1, lambda: patience.PAUSE_FLOOR_NS / SECOND_NS),
    r"have (\d+)\s+minutes\. A rank in a debugger": (1, lambda: patience.UNLEARNED_NS / MINUTE_NS),
    r"a stop is one after (\d+) s or": (1, lambda: patience.STALL_NS / SECOND_NS),
    r"or (\d+) times the longest step or pause": (1, lambda: patience.STALL_MULTIPLE),
    r"earlier attempts are read up to (\d+) GiB": (1, lambda: MAX_EARLIER_BYTES >> 30),
    r"the newest (\d+) rows;": (1, lambda: NEWEST_ROWS),
    r"The newest (\d+) of each rank stay": (1, lambda: PLAIN_ROWS),
    r"Every (\d+)\s+hours the agent moves": (1, lambda: ROW_THINNING_NS / HOUR_NS),
    r"the last ([\d,]+) records of each thread": (1, lambda: LAST_RECORDS),
    r"from ([\d,]+) ranks with rows on": (1, lambda: MANY_RANKS),
    r"Text shows the first (\d+) rows": (1, lambda: sql.MAX_ROWS),
    r"at most (\d+), and whether there are more": (1, lambda: tools.MAX_ROWS),
    r"for at most (\d+) s and in a quarter": (1, lambda: tools.QUERY_SECONDS),
    r"A text has at most ([\d,]+) characters": (1, lambda: MAX_TEXT),
    r"characters, and an answer ([\d,]+)\.": (1, lambda: MAX_CHARACTERS),
    r"their messages, at most ([\d,]+) characters": (1, lambda: MAX_MESSAGE_CHARACTERS),
    r"about (\d+) bytes per event, from": (1, lambda: tile_handoff.TILE_BYTES_PER_RECORD),
    r"bytes per event, from ([\d,]+) events on": (1, lambda: tile_handoff.MIN_RECORDS),
    r"in steps (\d+) to \d+, (?:and in requested|for at most)": (1, lambda: EARLY_STEPS.start),
    r"in steps \d+ to (\d+), (?:and in requested|for at most)": (1, lambda: EARLY_STEPS[-1]),
    r"every (\d+)th\), traincope's kernels": (1, lambda: MAX_INTERVAL),
    r"judges every (\d+) s, after": (1, lambda: so_far.REST_SECONDS),
    r"From (\d+) MiB of records on, it reads only rows": (1, lambda: so_far.MAX_BYTES >> 20),
    r"(\d+)-byte events": (1, lambda: RECORD_DTYPE.itemsize),
    r"each writing thread may keep; default (\d+) MiB": (1, lambda: DEFAULT_DISK_BUDGET >> 20),
    r"two readings (?:by the agent|of the ranks); default (\d+)": (2, lambda: agent.DEFAULT_INTERVAL_SECONDS),
    r"one CPU core that the agent takes; default ([\d.]+) ": (1, lambda: agent.SHARE_OF_A_CORE),
    r"run\(budget=([\d.]+)\)`, `TRAINCOPE_BUDGET": (1, lambda: DEFAULT_BUDGET),
    r"port (\d+) or, if that is taken|Open TCP port (\d+) between": (2, lambda: DEFAULT_PORT),
    r"agents of up to (\d+) other hosts|copies to the next (\d+) hosts": (2, lambda: NUM_WITNESSES),
    r"at most (\d+) children each": (1, lambda: FANOUT),
    r"keeps copies of at most (\d+) hosts": (1, lambda: MAX_HOSTS),
    r"by their newest ([\d,]+) collectives": (1, lambda: histories.MAX_RECORDS),
    r"before each of up to (\d+) instants": (1, lambda: MAX_POINTS),
    r"is local, has (\d+) MiB free": (1, lambda: MIN_FREE_BYTES >> 20),
    r"is sent at once; default (\d+) MiB": (1, lambda: DEFAULT_BYTES_PER_SECOND >> 20),
    r"for the last round; default (\d+) seconds": (1, lambda: DEFAULT_WAIT_SECONDS),
    r"takes? at least (\d+) % of step time": (10, lambda: 100 * MIN_SHARE),
    r"median of the (\d+) values before it|median of the last (\d+) losses": (2, lambda: logged_values.WINDOW),
    r"by (\d+) spreads and by 10 %|more than (\d+) spreads above": (2, lambda: logged_values.SIGMAS),
    r"exceeds the median by (\d+) spreads and by half": (1, lambda: slowness.SIGMAS),
    r"at least (\d+) samples are needed, over": (1, lambda: growth.MIN_SAMPLES),
    r"asks it every (\d+) seconds|reads the counter every (\d+) seconds": (2, lambda: hardware.POLL_SECONDS),
    r"At most ([\d,]+) events are recorded": (1, lambda: hardware.MAX_EVENTS_PER_NAME),
    r"at least (\d+) ms before those of all others": (1, lambda: rank_failures.CLEARLY_EARLIER_NS / 1_000_000),
    r"last record is at most (\d+) s old": (1, lambda: rank_failures.RECENT_NS / SECOND_NS),
    r"chance of at most 1 in ([\d,]+)": (1, lambda: round(1 / persistence.MAX_CHANCE)),
    r"fewer than (\d+) steps \(a\s+run of 60|About (\d+) recorded steps": (2, lambda: persistence.FEW_STEPS),
    r"found from (\d+) steps on each side|side has at least (\d+) steps": (2, lambda: step_changes.MIN_STEPS),
    r"each side and (\d+) % of the median|differ by at least (\d+) % of the": (2, lambda: 100 * step_changes.MIN_RATIO),
    r"Every (\d+) seconds the agent ships|to the next; default (\d+) \|": (2, lambda: limits.DEFAULT_INTERVAL_SECONDS),
    r"at most (\d+) objects of an hour": (1, lambda: folding.MAX_PER_HOUR),
    r"of an hour, and\s+one more per (\d+) MiB": (1, lambda: folding.FULL_BYTES >> 20),
    r"for at most (\d+) seconds; later records stay": (1, lambda: agent_shipping.STOPPED_SECONDS),
    r"pauses of up to (\d+) minutes; no step waits": (1, lambda: loop.MAX_PAUSE_SECONDS / 60),
    r"one step in (\d+) stays": (1, lambda: STEP_STRIDE),
    r"nor are more than ([\d,]+)": (1, lambda: MAX_TENSORS),
    r"more than (\d+) times as large as in the": (1, lambda: non_finite.FACTOR),
    r"as large as in the (\d+) steps before": (1, lambda: non_finite.RECENT),
    r"It reads at most (\d+) MiB of the": (1, lambda: MAX_DATA_BYTES >> 20),
    r"`none` \| S < (\d\.\d)": (1, lambda: slowdown.STRAGGLING_RATIO),
    r"the slowest (\d+) % of the workers": (1, lambda: slowdown.SLOWEST_PERCENT),
    r"a microbatch correlate by ([\d.]+) or more": (1, lambda: slowdown.CORRELATED),
}
"""What pages say -> at least as often, and its number by the code."""


@pytest.mark.parametrize("fact", FACTS)
def test_a_number_in_a_page_is_that_of_the_code(fact: str) -> None:
    times, number = FACTS[fact]
    stated = {name: found for name, text in PAGES.items() if (found := _numbers(fact, text))}
    assert sum(map(len, stated.values())) >= times
    assert {value for found in stated.values() for value in found} == {number()}, stated


def test_the_levels_of_confidence_are_those_of_the_code() -> None:
    levels = {value for name, value in vars(confidence).items() if name.isupper()}
    column = next(column for column in FAULTS_VIEW.columns if column.name == "confidence")
    assert set(re.findall(r"`(\w+)`", column.help)) == levels


def test_the_extras_that_the_readme_names_are_those_that_the_commands_ask_for() -> None:
    stated = re.findall(r"((?:`\w+`(?: and )?)+)\s+needs? `\[(\w+)\]`", PAGES["README.md"])
    pairs = {(command, extra) for commands, extra in stated for command in re.findall(r"`(\w+)`", commands)}
    assert len(pairs) == 6
    assert pairs <= {(command.split()[0], extra) for command, extra in NEED}


def _numbers(fact: str, text: str) -> list[float]:
    words = [next(filter(None, found.groups())).lower() for found in re.finditer(fact, text)]
    return [WORDS[word] if word in WORDS else float(word.replace(",", "")) for word in words]
