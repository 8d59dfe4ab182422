"""Purposes of the messages on an axis of data parallelism, and advice to send fewer, or less.

A purpose follows from the place of the call (forward, backward, optimizer), the operation and the sizes.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from traincope.analysis.communication.call_sites import Messages
from traincope.events import DDP_BUFFERS, Element, Phase
from traincope.units import share, size

DATA_AXES = ("dp", "shard", "replica", "data", "world")
"""Parts of the names of axes whose ranks have the same model and other data."""
FSDP_AXES = ("fsdp", "shard")
MANY = 8
"""Number of messages of one pass from which they are many."""
SMALL_BYTES, TINY_BYTES, LARGE_BYTES = 1 << 20, 1 << 12, 1 << 23
"""Mean size below which messages are small or tiny, and size from which one message could be several."""
SHORT_BYTES = 1 << 16
"""Size below which a message takes about as long as an empty one, so that fewer bytes save nothing."""
BUCKET_BYTES = 25 << 20
"""DDP's default size of a bucket."""
ALL_WEIGHTS = 0.9
"""Bytes of a broadcast / of the gradients from which it sends all weights."""
MOST = 0.8
"""Share of the bytes of a pass from which one message has most of them."""
IN_MODEL = (Phase.FORWARD, Phase.BACKWARD, Phase.RECOMPUTE)
HALF = ("bfloat16", "float16")
"""Types of products whose gradients need no more than 16 bits."""

SEND_BF16 = "send them as bf16 (DDP: bf16_compress_hook; FSDP2: MixedPrecisionPolicy(reduce_dtype=torch.bfloat16))"
WHOLE_BLOCKS = "Apply fully_shard (FSDP1: auto_wrap_policy) to whole blocks, not to single layers"
EVERY_BLOCK = "Apply fully_shard to every block before the root (FSDP1: auto_wrap_policy)"


class Purpose(Enum):
    OBJECTS = auto()
    """Pickled Python objects."""
    BUFFERS = auto()
    """Buffers that DDP broadcasts."""
    SHARDS = auto()
    """Parameters and gradients of FSDP."""
    GRADIENTS = auto()
    FORWARD = auto()
    """Other messages in the forward."""
    OUTSIDE = auto()
    """Messages outside of forward and backward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """Messages of one purpose, with the sentence and the advice about them."""

    purpose: Purpose
    transfer_ns: int
    """Exposed, over all ranks and counted steps."""
    wait_ns: int
    what: str
    """A clause, or empty if nothing about them is unusual."""
    advice: str
    """Empty without one."""
    avoidable: bool = False
    """The advice makes fewer of them, so that ranks also wait for each other less often."""


def sent_on(
    axis: str,
    messages: Sequence[Messages],
    *,
    rank_steps: int,
    products: Collection[str] = (),
    closures: bool = False,
) -> tuple[Sent, ...]:
    """Messages of an axis by purpose, those with the most exposed transfer first.

    `rank_steps`: steps in their sums. `products`: dtype of most of the counted FLOPs, or nothing. `closures`: the
    optimizer evaluates the model itself, and needs the reduced gradients each time.
    """
    by_purpose: dict[Purpose, list[Messages]] = defaultdict(list)
    for each in messages:
        if each.axis == axis and (any(part in axis for part in DATA_AXES) or each.phase is Phase.OBJECTS):
            by_purpose[_purpose(each)].append(each)
    found = []
    for purpose, rows in by_purpose.items():
        what, advice, avoidable = _described(purpose, by_purpose, rank_steps, products, closures=closures)
        waits = sum(row.wait_ns for row in rows)
        exposed = sum(row.exposed_ns for row in rows)
        found.append(
            Sent(
                purpose=purpose,
                transfer_ns=exposed - waits,
                wait_ns=waits,
                what=what,
                advice=advice,
                avoidable=avoidable,
            )
        )
    return tuple(sorted(found, key=lambda sent: -sent.transfer_ns))


def _purpose(sent: Messages) -> Purpose:
    if sent.phase is Phase.OBJECTS:
        return Purpose.OBJECTS
    if sent.place == DDP_BUFFERS:
        return Purpose.BUFFERS
    if sent.phase in IN_MODEL and any(part in sent.axis for part in FSDP_AXES):
        return Purpose.SHARDS
    if sent.phase is Phase.BACKWARD and "reduce" in sent.operation:
        return Purpose.GRADIENTS
    return Purpose.FORWARD if sent.phase in IN_MODEL else Purpose.OUTSIDE


Described = tuple[str, str, bool]
NOTHING: Described = ("", "", False)


def _described(
    purpose: Purpose,
    sent: dict[Purpose, list[Messages]],
    rank_steps: int,
    products: Collection[str],
    *,
    closures: bool,
) -> Described:
    rows = sent[purpose]
    if purpose is Purpose.BUFFERS:
        return _buffers(rows, _mean(sent.get(Purpose.GRADIENTS, []), rank_steps), rank_steps)
    if purpose is Purpose.SHARDS:
        return _shards(rows, rank_steps, products)
    if purpose is Purpose.GRADIENTS:
        small = any(_is_many(_Pass.of(row)) for row in sent.get(Purpose.FORWARD, []))
        return _gradients(rows, rank_steps, products, mixed=small, closures=closures)
    if purpose is Purpose.FORWARD:
        return _in_forward(rows)
    if purpose is Purpose.OUTSIDE:
        return _weights(rows, sent.get(Purpose.GRADIENTS, []), rank_steps) or _outside(rows, rank_steps)
    return NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pass:
    """Mean messages of one forward, backward or other place."""

    count: float
    num_bytes: float
    largest_bytes: int

    @classmethod
    def of(cls, *rows: Messages) -> "_Pass":
        visits = max((row.visits for row in rows), default=0) or 1
        return cls(
            count=sum(row.num_messages for row in rows) / visits,
            num_bytes=sum(row.num_bytes for row in rows) / visits,
            largest_bytes=max((row.largest_bytes for row in rows), default=0),
        )

    @property
    def mean_bytes(self) -> float:
        return self.num_bytes / self.count if self.count else 0.0

    @property
    def has_one(self) -> bool:
        """Return whether one large message has most of the bytes."""
        return self.num_bytes >= LARGE_BYTES and self.largest_bytes >= MOST * self.num_bytes


def _is_many(of_pass: _Pass) -> bool:
    return of_pass.count >= MANY and of_pass.mean_bytes < SMALL_BYTES


def _mean(rows: Sequence[Messages], rank_steps: int) -> float:
    """Bytes per step and rank."""
    return sum(row.num_bytes for row in rows) / max(rank_steps, 1)


def _buffers(rows: Sequence[Messages], gradient_bytes: float, rank_steps: int) -> Described:
    """DDP also broadcasts the order of its buckets in this place, once."""
    if 2 * max(row.visits for row in rows) < rank_steps:
        return NOTHING
    what = f"DDP broadcasts its buffers before every forward, {size(_mean(rows, rank_steps))} per step"
    return (
        f"{what}, next to {size(gradient_bytes)} of gradients" if gradient_bytes else what,
        "Construct DDP(..., broadcast_buffers=False), or make constant tables no buffers; only buffers that training "
        "changes (BatchNorm's) need the broadcast",
        True,
    )


def _gradients(
    rows: Sequence[Messages], rank_steps: int, products: Collection[str], *, mixed: bool, closures: bool
) -> Described:
    """`mixed`: other small messages of the backward, as those of SyncBatchNorm, are among them."""
    repeated, of_pass = None if closures else _repeated(rows, rank_steps), _Pass.of(*rows)
    if repeated:
        return repeated
    usual = 2 + of_pass.num_bytes / BUCKET_BYTES
    if _is_many(of_pass) and of_pass.count > 3 * usual and not mixed:
        return (
            f"the gradients' {size(of_pass.num_bytes)} go in {of_pass.count:.0f} small messages per backward, "
            f"{size(of_pass.mean_bytes)} on average",
            "Send them in fewer, larger buckets (DDP's bucket_cap_mb: 25 is the default; by hand: flatten them first)",
            True,
        )
    if of_pass.has_one:
        megabytes = max(round(of_pass.num_bytes / MANY / (1 << 20)), 1)
        return (
            f"{_one(of_pass)} of the gradients' {size(of_pass.num_bytes)}: it begins when the backward has nearly "
            "ended, so little compute can hide it",
            f"Send them in more buckets, from the begin of the backward on: DDP(..., bucket_cap_mb={megabytes})",
            False,
        )
    return _precision(rows, products) or NOTHING


def _one(of_pass: _Pass) -> str:
    return f"one message has {share(of_pass.largest_bytes / of_pass.num_bytes)}"


def _repeated(rows: Sequence[Messages], rank_steps: int) -> Described | None:
    """Gradients that several backwards of a step reduce. Models of different sizes are not one that accumulates."""
    row = max(rows, key=lambda each: each.num_bytes)
    times = row.visits / max(rank_steps, 1)
    if times < 1.5 or row.num_bytes < 0.99 * row.visits * row.visit_bytes:
        return None
    return (
        f"each of {times:.0f} backwards per step reduces all gradients, {times:.0f} x {size(row.visit_bytes)}",
        "Reduce them in the last backward only: run forward and backward of the others within model.no_sync() "
        "(FSDP2: model.set_requires_gradient_sync(False))",
        True,
    )


def _precision(rows: Sequence[Messages], products: Collection[str]) -> Described | None:
    """Gradients of 32 bits: the only messages that bf16 halves without a change of the model."""
    total, wide = (sum(row.num_bytes for row in part) for part in (rows, _wide(rows)))
    if 2 * wide < total or _Pass.of(*rows).largest_bytes < SHORT_BYTES:
        return None
    although = next((f", although most products are {dtype}" for dtype in products if dtype in HALF), "")
    what = f"the gradients are sent as fp32{although}"
    return what, f"Overlap them with the backward, and {SEND_BF16}", False


def _wide(rows: Sequence[Messages]) -> list[Messages]:
    return [row for row in rows if row.element is Element.FLOAT32]


def _shards(rows: Sequence[Messages], rank_steps: int, products: Collection[str]) -> Described:
    gathers = [row for row in rows if row.operation == "all_gather" and row.phase is Phase.FORWARD]
    reduces = [row for row in rows if row.operation == "reduce_scatter" and row.phase is Phase.BACKWARD]
    of_pass = _Pass.of(*gathers)
    if gathers and of_pass.has_one:
        return (
            f"FSDP gathers its parameters in one unit: {_one(of_pass)} of the {size(of_pass.num_bytes)} per forward, "
            "and no compute can hide it",
            EVERY_BLOCK,
            False,
        )
    if gathers and _is_many(of_pass):
        return (
            f"FSDP gathers its parameters in {of_pass.count:.0f} tiny units per forward, "
            f"{size(of_pass.mean_bytes)} on average",
            WHOLE_BLOCKS,
            True,
        )
    repeated = _repeated(reduces, rank_steps) if reduces else None
    return repeated or (_precision(reduces, products) if reduces else None) or NOTHING


def _in_forward(rows: Sequence[Messages]) -> Described:
    row = max(rows, key=lambda each: each.exposed_ns)
    of_pass = _Pass.of(row)
    if not _is_many(of_pass):
        return NOTHING
    return (
        f"{of_pass.count:.0f} small {row.operation} per {row.phase.name.lower()}, {size(of_pass.mean_bytes)} on "
        "average, as SyncBatchNorm sends them for every layer",
        "Normalize without messages (BatchNorm of each rank's batch, GroupNorm), or send the values of several layers "
        "together",
        True,
    )


def _weights(rows: Sequence[Messages], gradients: Sequence[Messages], rank_steps: int) -> Described | None:
    """Weights that are sent again, although averaged gradients keep them equal. An optimizer of parts sends its own."""
    sent = [row for row in rows if row.operation == "broadcast" and row.phase is not Phase.OPTIMIZER]
    mean, of_gradients = _mean(sent, rank_steps), _mean(gradients, rank_steps)
    if not of_gradients or mean < ALL_WEIGHTS * of_gradients or 2 * sum(row.num_messages for row in sent) < rank_steps:
        return None
    return (
        f"broadcast outside of forward and backward sends {size(mean)} per step, as much as the weights, next to "
        f"{size(of_gradients)} of gradients that are reduced: they keep equal weights equal",
        "Leave the broadcast out, or do it once at the begin, as DDP does",
        True,
    )


def _outside(rows: Sequence[Messages], rank_steps: int) -> Described:
    row = max(rows, key=lambda each: each.exposed_ns)
    count = row.num_messages / max(rank_steps, 1)
    mean = row.num_bytes / row.num_messages if row.num_messages else 0.0
    place = f"in {row.place.removeprefix('optimizer ')}" if row.place else "outside of forward and backward"
    what = f"{count:.0f} {row.operation} per step {place} send {size(mean)} each"
    if count >= MANY and mean <= TINY_BYTES:
        return (
            f"{what}: many small values, such as metrics, or a norm per parameter for clipping",
            "Stack the values into one tensor on each rank, and reduce it once per step, or more rarely if it is only "
            "logged",
            True,
        )
    if count >= MANY and mean < SMALL_BYTES:
        return (
            f"{what}: one message per tensor",
            "Flatten the tensors into a few buffers; DDP sends gradients so, during the backward",
            True,
        )
    if row.place or mean < SMALL_BYTES:
        return NOTHING
    return (
        f"{what}, where no compute hides them",
        "Send gradients during the backward: DDP and FSDP do",
        False,
    )
