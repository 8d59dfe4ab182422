"""Sums over the samples of one rollout: what a few logged values keep of any number of lengths."""

from collections.abc import Mapping, Sequence

from traincope.events import (
    ROLLOUT_DISCARDED,
    ROLLOUT_GENERATED,
    ROLLOUT_HALF,
    ROLLOUT_LONGEST,
    ROLLOUT_PROMPTS,
    ROLLOUT_SAMPLES,
)

MAX_ID = 64
"""Characters of a sample's id that are kept."""


def rollout_sums(lengths: Sequence[int], *, prompt_tokens: int, discarded_tokens: int) -> Mapping[str, int]:
    """Return name -> value. `ROLLOUT_HALF`: tokens after which fewer than half of the samples still generate."""
    ordered = sorted(map(int, lengths))
    return {
        ROLLOUT_SAMPLES: len(ordered),
        ROLLOUT_PROMPTS: int(prompt_tokens),
        ROLLOUT_GENERATED: sum(ordered),
        ROLLOUT_DISCARDED: int(discarded_tokens),
        ROLLOUT_LONGEST: ordered[-1],
        ROLLOUT_HALF: ordered[len(ordered) - (len(ordered) + 1) // 2],
    }


def longest_sample(
    lengths: Sequence[int], ids: Sequence[object] | None, tool_seconds: Sequence[float] | None
) -> dict[str, object]:
    """Return the longest sample: its id (its place if there are none), tokens and time in tools."""
    at = max(range(len(lengths)), key=lambda place: lengths[place])
    tools = {} if tool_seconds is None else {"tool_seconds": float(tool_seconds[at])}
    return {"id": str(at if ids is None else ids[at])[:MAX_ID], "tokens": int(lengths[at]), **tools}
