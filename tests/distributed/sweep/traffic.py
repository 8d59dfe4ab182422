"""Communication of a layout by axis and operation, from the shapes alone, summed over all ranks.

Bytes are counted as nccl-tests count them: the whole tensor of a gather or reduction, otherwise the bytes that one rank
sends. Each function below is one axis' share; `make test-engine` compares their sum with the recording.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from traincope.engine.config import Config
from traincope.plan.pipeline.orders import SCHEDULES, Shape, orders

FLOAT = INT = 4
LONG = 8
WORLD = "world"

Key = tuple[str, str]
"""Axis and operation."""
Traffic = dict[Key, tuple[int, int]]
"""Number of operations and bytes of all ranks."""
Sent = Iterator[tuple[Key, int, int]]
"""Axis and operation, number, bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Numbers of a layout.

    A column is the pipeline ranks that hold one model; sums over layers are sums over a column.
    """

    config: Config

    @property
    def columns(self) -> int:
        return self.config.parallel.world_size // self.config.parallel.pp

    @property
    def shards(self) -> int:
        return self.config.parallel.shards

    @property
    def sequences(self) -> int:
        """Sequences of one rank in one step."""
        return self.config.train.batch // self.config.parallel.replicas

    @property
    def tokens(self) -> int:
        """Tokens of one rank in one step. Tensor parallelism may split them again."""
        return self.sequences * self.config.model.sequence // self.config.parallel.cp

    @property
    def norms(self) -> int:
        return (2 * self.config.model.layers + 1) * self.config.model.hidden

    @property
    def routers(self) -> int:
        experts = self.config.experts
        return 0 if experts is None else self.config.model.layers * experts.number * self.config.model.hidden

    @property
    def parameters(self) -> int:
        """Parameters of one column before sharding. A tp rank has whole norms and routers."""
        model = self.config.model
        attention = 2 * model.hidden**2 * (1 + model.kv_heads / model.heads)
        block = int(attention) + self._feed_forward
        matrices = model.layers * block + 2 * model.vocabulary * model.hidden
        return matrices // self.config.parallel.tp + self.norms + self.routers

    @property
    def _feed_forward(self) -> int:
        """Feed-forward parameters; spread experts count zero."""
        model, experts = self.config.model, self.config.experts
        if experts is None:
            return 3 * model.hidden * model.ffn
        return self.expert_weights if self.config.parallel.ep == 1 else 0

    @property
    def expert_weights(self) -> int:
        """Parameters of one rank's experts in one layer, before tensor parallelism splits them."""
        model, experts = self.config.model, self.config.experts
        return 0 if experts is None else experts.number // self.config.parallel.ep * 3 * model.hidden * experts.ffn

    @property
    def rows(self) -> int:
        """Rows that one rank's tokens take of all experts in one layer and step, with empty rows of a capacity.

        With split sequences no row is empty; the router decides how many choices a capacity drops, and so the number of
        rows.
        """
        model, experts = self.config.model, self.config.experts
        assert experts is not None
        assert experts.capacity_factor is None or self.config.parallel.cp == 1
        capacity = experts.capacity(model.sequence)
        return self.tokens * experts.top_k if capacity is None else self.sequences * experts.number * capacity

    @property
    def units(self) -> int:
        """FSDP's units of one column: a stage's blocks, and the rest: the model's ends, or the only block."""
        split, each = self.config.stage_layers, self.config.fsdp.unit_blocks
        groups = [-(-len(layers) // each) if len(layers) > each else 0 for layers in split]
        ends = {0, len(split) - 1}
        return sum(groups) + sum(stage in ends or not number for stage, number in enumerate(groups))

    @property
    def shard_axis(self) -> str:
        return "fsdp" if self.config.parallel.cp == 1 else "fsdp_cp"

    @property
    def replica_axis(self) -> str:
        return "dp" if self.config.parallel.cp == 1 else "dp_cp"

    @property
    def ddp(self) -> bool:
        """DDP's replicas. With tensor parallelism, replicas belong to FSDP, with shards of one rank."""
        return self.config.parallel.dp > 1 and self.config.parallel.tp == 1


def traffic(config: Config, *, steps: int) -> Traffic:
    """Sum over the axes, for `steps` steps from the second on."""
    sizes = Sizes(config=config)
    total: dict[Key, tuple[int, int]] = defaultdict(lambda: (0, 0))
    every_step = [
        sent
        for part in (tensor, shares, context, shards, routers, exchanges, experts, replicas, stages, scalars)
        for sent in part(sizes)
    ]
    for key, times, num_bytes in [*every_step * steps, *once(sizes)]:
        total[key] = total[key][0] + times, total[key][1] + num_bytes
    return dict(total)


def tensor(sizes: Sizes) -> Sent:
    """Two gathers and two reductions of the stream per block and pass, one at each end of the model; or all-reduces.

    Experts that are also spread return no parts of a sum: see `shares`. The loss sums three numbers per token over the
    parts of the vocabulary. Routers have parts of their gradients, and so have norms if the sequence is split. FSDP
    sums each as it reduces it; otherwise one sum per rank covers all.
    """
    config, columns = sizes.config, sizes.columns
    parallel, layers = config.parallel, config.model.layers
    if parallel.tp == 1:
        return
    streams = (4 if parallel.ep == 1 else 3) * layers + 2
    times = streams * parallel.microbatches * columns
    num_bytes = streams * sizes.tokens * config.model.hidden * FLOAT * columns
    for operation in ("all_gather", "reduce_scatter") if parallel.sequence_parallel else ("all_reduce",):
        yield ("tp", operation), times, num_bytes
    yield ("tp", "all_reduce"), 3 * parallel.microbatches * columns, 3 * sizes.tokens * FLOAT * columns
    norms = 2 * layers + 1 if parallel.sequence_parallel else 0
    mixtures = 0 if config.experts is None else layers
    if norms or mixtures:
        sums = (norms + mixtures) * columns if sizes.shards > 1 or parallel.dp > 1 else parallel.world_size
        yield ("tp", "all_reduce"), sums, ((sizes.norms if norms else 0) + sizes.routers) * FLOAT * columns


def shares(sizes: Sizes) -> Sent:
    """Exchanges of experts that are both split and spread.

    Each rank of `tp` sends its share of each row and gets it back. At the expert's rank all rows of all ranks are
    gathered and reduced, in each pass, once for each rank of `tp`. Whole tokens of a part of the sequence are exchanged
    for shares of all tokens in each pass. Without sequence parallelism shares are gathered, and each rank has their
    gradients already.
    """
    config = sizes.config
    if config.parallel.tp == 1 or config.parallel.ep == 1:
        return
    layers, microbatches = config.model.layers * sizes.columns, config.parallel.microbatches
    row = config.model.hidden * FLOAT
    for operation in ("all_gather", "reduce_scatter"):
        yield ("tp", operation), 2 * layers * microbatches, 2 * layers * sizes.rows * row
    if config.parallel.sequence_parallel:
        sent = layers * sizes.tokens * row // config.parallel.tp
        yield ("tp", "all_to_all"), 2 * layers * microbatches, 2 * sent
    else:
        yield ("tp", "all_gather"), layers * microbatches, layers * sizes.tokens * row


def context(sizes: Sizes) -> Sent:
    """Ring: c - 1 hops of keys and values per pass, and c of their gradients. Ulysses: two exchanges per pass."""
    parallel, model = sizes.config.parallel, sizes.config.model
    if parallel.cp == 1:
        return
    calls = model.layers * parallel.microbatches * sizes.columns
    head = sizes.tokens * (model.hidden // model.heads) * FLOAT // parallel.tp
    if parallel.cp_method == "ulysses":
        exchanged = (2 * model.heads + 2 * model.kv_heads) * head
        yield ("cp", "all_to_all"), 4 * calls, 2 * model.layers * sizes.columns * exchanged
        return
    hops, keys_and_values = 3 * parallel.cp - 2, 2 * model.kv_heads * head
    for operation in ("send", "recv"):
        yield ("cp", operation), hops * calls, hops * model.layers * sizes.columns * keys_and_values


def shards(sizes: Sizes) -> Sent:
    """Gathers and reductions of FSDP's units.

    Each unit is gathered for forward and for backward (in pipelines and ZeRO-2 once per step for both), and reduced
    once.
    """
    if sizes.shards == 1:
        return
    config = sizes.config
    gathers = 1 if config.parallel.pp > 1 or config.fsdp.stage == 2 else 2
    times, num_bytes = sizes.units * sizes.columns, sizes.parameters * FLOAT * sizes.columns
    yield (sizes.shard_axis, "all_gather"), gathers * times, gathers * num_bytes
    yield (sizes.shard_axis, "reduce_scatter"), times, num_bytes
    if config.parallel.dp_replicate > 1:
        yield ("dp_replicate", "all_reduce"), times, num_bytes // sizes.shards


def routers(sizes: Sizes) -> Sent:
    """Counts of choices that ranks sum over split sequences.

    With a capacity, ranks also exchange the counts of each piece of a sequence, first choices apart from second
    choices.
    """
    config = sizes.config
    if config.experts is None or config.parallel.cp == 1:
        return
    layers = config.model.layers * sizes.columns
    counts = sizes.sequences * config.experts.number
    yield ("cp", "all_reduce"), layers * config.parallel.microbatches, layers * counts * FLOAT
    if config.experts.capacity_factor is not None:
        pieces = config.parallel.cp * (2 if config.parallel.cp_method == "ring" else 1)
        count_bytes = counts * config.experts.top_k * pieces * INT
        yield ("cp", "all_gather"), layers * config.parallel.microbatches, layers * count_bytes


def exchanges(sizes: Sizes) -> Sent:
    """Rows go to their experts and return, in each pass. Without a capacity their numbers precede them."""
    config = sizes.config
    if config.experts is None or config.parallel.ep == 1:
        return
    layers, microbatches = config.model.layers * sizes.columns, config.parallel.microbatches
    if config.experts.capacity_factor is None:
        yield ("ep", "all_to_all"), layers * microbatches, layers * microbatches * config.experts.number * LONG
    share = config.model.hidden // config.parallel.tp * FLOAT
    yield ("ep", "all_to_all"), 4 * layers * microbatches, 4 * layers * sizes.rows * share


def experts(sizes: Sizes) -> Sent:
    """Gathers and reductions of experts, over the ranks that have the same experts."""
    config, ranks = sizes.config, sizes.shards // sizes.config.parallel.ep
    if config.experts is None or config.parallel.ep == 1:
        return
    times, gathers = config.model.layers * sizes.columns, 1 if config.parallel.pp > 1 else 2
    num_bytes = times * sizes.expert_weights // config.parallel.tp * FLOAT
    if ranks > 1:
        yield ("efsdp", "all_gather"), gathers * times, gathers * num_bytes
        yield ("efsdp", "reduce_scatter"), times, num_bytes
    if config.parallel.dp_replicate > 1:
        yield ("dp_replicate", "all_reduce"), times, num_bytes // ranks


def replicas(sizes: Sizes) -> Sent:
    """Gradient reductions. With DDP a stage's small gradients are one bucket; FSDP reduces those of each unit."""
    parallel = sizes.config.parallel
    if parallel.dp > 1:
        times = parallel.pipeline.chunks * parallel.world_size if sizes.ddp else sizes.units * sizes.columns
        yield (sizes.replica_axis, "all_reduce"), times, sizes.parameters * FLOAT * sizes.columns


def once(sizes: Sizes) -> Sent:
    """Messages of DDP in the second step, in which ranks agree on the buckets.

    DDP orders its buckets as gradients arrived in the first step. For each stage the message has a place for each
    parameter and their number, then the length of each bucket.
    """
    parallel = sizes.config.parallel
    if sizes.ddp:
        stages = parallel.pipeline.chunks * parallel.world_size
        block = 9 if sizes.config.experts is None else 10
        tensors = (block * sizes.config.model.layers + 3) * sizes.columns
        yield (sizes.replica_axis, "broadcast"), 2 * stages, (tensors + 2 * stages) * INT


def stages(sizes: Sizes) -> Sent:
    """One message for each action with an input from another rank of the pipeline."""
    config, parallel = sizes.config, sizes.config.parallel
    if parallel.pp == 1:
        return
    times = messages(parallel.order_name, parallel.pipeline) * sizes.columns
    sequences = sizes.sequences // parallel.microbatches
    num_bytes = sequences * config.stream_tokens * config.model.hidden * FLOAT
    for operation in ("send", "recv"):
        yield ("pp", operation), times, times * num_bytes


def messages(schedule: str, shape: Shape) -> int:
    """Messages of one pipeline's ranks in one step: activations to the next stage, their gradients back."""
    placement = SCHEDULES[schedule].placement
    rank_of = {stage: rank for rank in range(shape.ranks) for stage in placement(rank, shape)}
    feeds = {"F": -1, "B": 1, "I": 1}
    sources = [
        (rank, rank_of.get(action.stage + feeds[action.kind]))
        for rank, order in orders(schedule, shape).items()
        for action in order
        if action.kind in feeds
    ]
    return sum(source is not None and source != rank for rank, source in sources)


def scalars(sizes: Sizes) -> Sent:
    """One number of the gradient norm per axis that splits parameters, and one of the logged loss for the world."""
    parallel, ranks = sizes.config.parallel, sizes.config.parallel.world_size
    axes = [
        axis for axis, size in ((sizes.shard_axis, sizes.shards), ("tp", parallel.tp), ("pp", parallel.pp)) if size > 1
    ]
    for axis in axes:
        yield (axis, "all_reduce"), ranks, FLOAT * ranks
    yield (world_axis(sizes.config), "all_reduce"), ranks, FLOAT * ranks


def world_axis(config: Config) -> str:
    """Recorded axis of the group of all ranks: torch gives this group to a mesh with one axis."""
    parallel, sizes = config.parallel, Sizes(config=config)
    used = {
        "pp": parallel.pp,
        "dp_replicate": parallel.dp_replicate,
        sizes.shard_axis: sizes.shards,
        sizes.replica_axis: parallel.dp * parallel.cp if parallel.dp > 1 else 1,
        "tp": parallel.tp,
    }
    axes = [axis for axis, size in used.items() if size > 1]
    return axes[0] if len(axes) == 1 else WORLD
