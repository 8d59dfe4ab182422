"""Rollouts: tokens, the rate of generation, and the long tail of samples."""

from collections.abc import Iterator

from traincope.analysis.efficiency.rollouts import LongSample, Rollouts
from traincope.report.sections.section import Lines, Section, Table, Words, number, rows
from traincope.report.sections.source import Source
from traincope.units import count, duration

NAME, TITLE = "rollouts", "Rollouts"
MISSING = "The training records no rollouts: call traincope.rollout(lengths) after each batch."
MAX_RANKS = 16


def rollouts(source: Source) -> Section:
    found = source.analysis.rollouts
    if found is None:
        return Section(name=NAME, title=TITLE, missing=MISSING)
    return Section(
        name=NAME,
        title=TITLE,
        lead=(
            f"{count(found.samples, 'sample')}, {count(found.generated_tokens, 'generated token')}, "
            f"{count(found.prompt_tokens, 'token')} of prompts; ",
            number(NAME, "discarded_ratio", form="share"),
            " of the generated tokens are not trained",
        ),
        parts=(
            Table(
                caption="Generation by rank",
                heads=("rank", "tokens", "tokens/s", "longest of a batch"),
                rows=rows(_row(found, at) for at in range(min(len(found.ranks), MAX_RANKS))),
            ),
            Lines(tuple(_lines(found))),
        ),
    )


def _row(found: Rollouts, at: int) -> Iterator[Words]:
    place = (NAME, "ranks", at)
    yield f"rank {found.ranks[at].rank}"
    yield number(*place, "generated_tokens", form="count")
    yield number(*place, "tokens_per_second", form="mean")
    yield number(*place, "mean_longest", form="mean")


def _lines(found: Rollouts) -> Iterator[Words]:
    yield (
        "fewer than half of the samples generate in ",
        number(NAME, "tail_ratio", form="share"),
        " of the generation: a cap there saves it",
    )
    yield (
        number(NAME, "empty_ratio", form="share"),
        " of the places are empty, as their samples end before the longest: filling them saves that at most",
    )
    for sample in found.slowest:
        yield _sample(sample)


def _sample(sample: LongSample) -> str:
    tools = "" if sample.tool_seconds is None else f", {duration(sample.tool_seconds * 1e9)} in tools"
    at = "" if sample.step is None else f" in step {sample.step}"
    return f"long: sample {sample.id} of rank {sample.rank}{at}, {count(sample.tokens, 'token')}{tools}"
