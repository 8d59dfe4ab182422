"""The fastest layouts of small models: against all of them, and against exercises computed by hand."""

from dataclasses import replace
from pathlib import Path

import pytest

from traincope.engine.config.load import load_config
from traincope.engine.model.shape import transformer
from traincope.errors import UsageError
from traincope.plan.layout.layout import Layout, Place
from traincope.plan.layout.memory import memory
from traincope.plan.layout.prediction import predict
from traincope.plan.model.flops import Recompute
from traincope.plan.model.precision import Precision
from traincope.plan.model.sources import read_model
from traincope.plan.model.transformer import Experts, Transformer
from traincope.plan.search.caveats import caveats, interval
from traincope.plan.search.clusters import ACCELERATORS, Cluster, find_accelerator
from traincope.plan.search.explanation import differences, parts
from traincope.plan.search.job import Job, days, mfu_for, outcome
from traincope.plan.search.search import FLASH, Found, search
from traincope.plan.search.space import Rejections, Wanted, layouts, meshes
from traincope.plan.search.training_file import training_file

SMALL = Transformer(
    layers=6, hidden=256, heads=8, kv_heads=4, ffn=512, vocabulary=512, sequence=256, gated_mlp=True, untied=True
)
H100 = find_accelerator("h100")
EIGHT = Cluster(accelerator=H100, gpus=8)
ANY = Wanted()


def found(shape: Transformer = SMALL, *, cluster: Cluster = EIGHT, batch: int = 16, wanted: Wanted = ANY) -> Found:
    return search(shape, cluster=cluster, batch=batch, precision=Precision(), wanted=wanted)


def test_the_ranking_is_that_of_all_layouts_predicted_exactly() -> None:
    """Every layout of the space, one after the other, without lower bounds."""
    seconds = sorted(
        predict(
            SMALL,
            layout=layout,
            precision=Precision(),
            policy=FLASH,
            machine=EIGHT.machine(),
            causal_half=True,
        ).expected_seconds
        for mesh in meshes(SMALL, ranks=8, domain=8, wanted=Wanted(), rejections=Rejections())
        for series in layouts(SMALL, mesh, batch=16, wanted=Wanted(), rejections=Rejections())
        for layout in series
    )
    result = found()
    assert result.num_fitting == len(seconds)
    assert [each.prediction.expected_seconds for each in result.ranked] == pytest.approx(seconds[:10])


def test_a_layout_that_does_not_fit_recomputes_first() -> None:
    """A 70B model on 64 GPUs with tp 4, pp 2, dp 8 keeps its activations only if it computes them again."""
    shape = read_model("llama3-70b", sequence=8192)
    cluster = Cluster(accelerator=H100, gpus=64)
    result = found(shape, cluster=cluster, batch=512, wanted=Wanted(tp=4, pp=2, dp=8, schedule="1f1b", micro_batch=1))
    layout, best = result.ranked[0].layout, result.ranked[0]
    assert (best.recompute, layout.zero) == (Recompute.FULL, 1)
    whole = memory(shape, layout=layout, precision=Precision(), policy=FLASH)
    assert max(rank.total for rank in whole) > cluster.memory_bytes >= best.prediction.largest_bytes


def test_nothing_fits_and_the_smallest_says_how_much_it_needs() -> None:
    alone = replace(EIGHT, accelerator=replace(H100, host=None))
    result = found(read_model("llama3-405b", sequence=8192), cluster=alone)
    assert result.ranked == ()
    assert result.smallest is not None
    _, recompute, needed = result.smallest
    assert recompute is Recompute.FULL
    # Weights, gradients and state of 405.8 billion parameters, 16 bytes each, on 8 GPUs.
    assert needed > 405.8e9 * 16 / 8


def test_state_leaves_the_device_only_where_nothing_fits_without_it() -> None:
    """16 bytes of each of 70.55 billion parameters on 8 ranks are 141 GB. A rank has 250 GB of the CPU's memory."""
    assert {each.layout.state_place for each in found().ranked} == {Place.DEVICE}
    shape = read_model("llama3-70b", sequence=8192)
    result = found(shape, batch=64)
    assert {each.layout.state_place for each in result.ranked} == {Place.CPU}
    best = result.ranked[0]
    assert best.prediction.offload_seconds > 0
    assert best.prediction.memory[0].host == pytest.approx(16 * shape.parameters / 8, rel=0.01)
    assert list(caveats(best.layout, H100)) == [
        "the fastest layout has offloaded state, and the prediction is compared with no published training that has it"
    ]
    disks = found(shape, batch=64, wanted=Wanted(offload=Place.NVME, zero=3))
    assert {each.layout.state_place for each in disks.ranked} == {Place.NVME}
    assert disks.ranked[0].prediction.expected_seconds > best.prediction.expected_seconds


def test_numbers_are_rounded_only_if_that_is_wanted() -> None:
    assert not any(each.layout.quantize_weights for each in found().ranked)
    wanted = Wanted(zero=3, tp=1, pp=1, cp=1, quantized=True)
    assert any(each.layout.quantize_weights for each in found(wanted=wanted).ranked)


def test_shards_are_replicated_once_for_each_link_domain() -> None:
    """16 ranks in domains of 8, with tp 2: four shards in each of two replicas."""
    space = [
        layout
        for series in layouts(
            SMALL,
            {"dp": 8, "tp": 2, "pp": 1, "cp": 1, "ep": 1},
            batch=16,
            wanted=Wanted(micro_batch=1),
            rejections=Rejections(),
            domain=8,
        )
        for layout in series
    ]
    assert [(layout.zero, layout.replicas) for layout in space] == [(1, 1), (2, 1), (3, 1), (3, 2), (3, 1)]
    assert [layout.node_ranks for layout in space] == [None, None, None, None, 4]


def test_rejections_name_the_rule() -> None:
    result = found(wanted=Wanted(tp=3))
    assert result.rejected == {"tp 3 does not divide the 8 GPUs": 1}
    domain = found(cluster=replace(EIGHT, domain=2))
    assert domain.rejected["tp is wider than the link domain of 2 GPUs"] == 2
    assert all(each.layout.tp <= 2 for each in domain.ranked)


def test_parts_sum_to_the_step_and_differences_to_the_difference() -> None:
    first, *_, last = found().ranked
    assert sum(parts(first.prediction).values()) == pytest.approx(first.prediction.expected_seconds)
    more = last.prediction.expected_seconds - first.prediction.expected_seconds
    assert sum(differences(first.prediction, last.prediction).values()) == pytest.approx(more)


@pytest.mark.parametrize("name", ACCELERATORS)
def test_every_accelerator_names_its_documents(name: str) -> None:
    accelerator = ACCELERATORS[name]
    machine = Cluster(accelerator=accelerator, gpus=64).machine()
    assert accelerator.source
    assert machine.peak_flops > 1e14
    assert machine.node_bytes_per_second > machine.network_bytes_per_second


def test_one_rail_is_shared_by_the_domain() -> None:
    machine = replace(EIGHT, gpus=16, rails=1).machine()
    assert machine.network_bytes_per_second == pytest.approx(50e9 / 8)


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        ({"gpus": 0}, "gpus is 0; it must be at least 1"),
        ({"reserve": 1.0}, "reserve is 1; it must be at least 0 and below 1"),
        ({"oversubscription": 0.5}, "oversubscription is 0.5; it must be at least 1"),
    ],
)
def test_an_impossible_cluster_is_refused(cluster: dict[str, float], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        replace(EIGHT, **cluster)  # type: ignore[arg-type]


def test_an_unknown_accelerator_is_refused() -> None:
    with pytest.raises(UsageError, match="--gpu h10 is not known; did you mean h100"):
        find_accelerator("h10")


def test_a_message_takes_the_links_between_its_ranks() -> None:
    """MI300X: 64 GB/s to each of seven peers. Trainium2: four links of 128 GB/s. NVSwitch: all links to any peer."""
    mesh, torus, switch = (
        Cluster(accelerator=find_accelerator(name), gpus=64).machine() for name in ("mi300x", "trainium2", "h100")
    )
    assert [mesh.within_bytes_per_second(ranks) / 1e9 for ranks in (2, 4, 8)] == [64, 192, 448]
    assert [torus.within_bytes_per_second(ranks) / 1e9 for ranks in (2, 4, 16)] == [128, 256, 512]
    assert [switch.within_bytes_per_second(ranks) / 1e9 for ranks in (2, 8)] == [450, 450]


@pytest.mark.parametrize(
    ("layout", "gpu", "words"),
    [
        (Layout(cp=2), "h100", []),
        (Layout(cp=32), "h100", ["cp = 32"]),
        (Layout(dp=2), "mi300x", ["MI300X"]),
        (Layout(cp=32), "tpu-v5p", ["TPU v5p", "cp = 32"]),
        (Layout(dp=2), "a100", []),
        (Layout(dp=2, zero=3), "h100", []),
        (Layout(tp=16, pp=2, schedule="zb-1p", microbatches=4), "h100", ["tp = 16, schedule zb-1p"]),
    ],
)
def test_a_layout_unlike_published_trainings_has_a_caveat(layout: Layout, gpu: str, words: list[str]) -> None:
    lines = list(caveats(layout, find_accelerator(gpu)))
    assert len(lines) == len(words)
    assert all(word in line for word, line in zip(words, lines, strict=True))


def test_only_a_layout_like_published_trainings_has_an_interval() -> None:
    h100, b200 = find_accelerator("h100"), find_accelerator("b200")
    like, other = interval(Layout(tp=8), h100) or (0.0, 0.0)
    assert 1 < like < other < 1.15
    assert interval(Layout(tp=8), b200) is None
    assert interval(Layout(tp=16), h100) is None
    assert interval(Layout(tp=8), h100, shape=MIXTURE) is None
    assert interval(Layout(tp=8), h100, shape=replace(SMALL, windows=(64,) * SMALL.layers)) is None
    assert interval(Layout(tp=8), h100, measured=True) is None


def test_experts_are_a_caveat_of_published_trainings_only() -> None:
    (line,) = caveats(Layout(dp=2), find_accelerator("h100"), shape=MIXTURE)
    assert "experts" in line
    assert list(caveats(Layout(dp=2, zero=3), find_accelerator("h100"), shape=MIXTURE, measured=True)) == []


# -- the whole job --------------------------------------------------------------------------------


def test_goodput_money_and_energy() -> None:
    """100 steps on 8 GPUs. A failure every 1,000 h loses almost nothing; 10 s of saves at Daly's interval do."""
    prediction = found().ranked[0].prediction
    job = Job(
        tokens=100 * prediction.tokens_per_step,
        price_per_gpu_hour=2,
        watts=700,
        pue=1.5,
        rank_mtbf_seconds=8 * 3.6e6,
        save_seconds=10,
        restart_seconds=0,
    )
    whole = outcome(prediction, job)
    assert whole.days == pytest.approx(100 * prediction.expected_seconds / 86_400)
    assert whole.mtbf_hours == pytest.approx(1000)
    assert whole.checkpoint_seconds == pytest.approx((2 * 10 * 3.6e6) ** 0.5, rel=0.01)
    assert whole.goodput_ratio == pytest.approx(1 - 2 * 10 / whole.checkpoint_seconds, rel=1e-3)
    assert whole.gpu_hours == pytest.approx(whole.elapsed_days * 24 * 8)
    assert whole.money == pytest.approx(2 * whole.gpu_hours)
    assert whole.energy_mwh == pytest.approx(whole.gpu_hours * 0.7e-3 * 1.5)


def test_what_ten_percent_of_mfu_are_worth() -> None:
    """405B on 15.6e12 tokens and 16,384 H100: 6 N D = 3.79e25 FLOPs; at 40 % 67.7 days, at 44 % 61.5 days."""
    slow, fast = (
        days(parameters=405e9, tokens=15.6e12, gpus=16_384, peak_flops=989.4e12, mfu=mfu) for mfu in (0.40, 0.44)
    )
    assert (slow, fast) == pytest.approx((67.66, 61.51), abs=0.01)
    assert fast == pytest.approx(slow / 1.1)


def test_a_deadline_sets_the_utilization() -> None:
    """70B on 15e12 tokens in 17 days and 8,192 H100: 6.3e24 FLOPs need 52.9 %."""
    mfu = mfu_for(parameters=70e9, tokens=15e12, gpus=8192, peak_flops=989.4e12, days=17)
    assert mfu == pytest.approx(0.5292, abs=1e-4)
    assert days(parameters=70e9, tokens=15e12, gpus=8192, peak_flops=989.4e12, mfu=mfu) == pytest.approx(17)


@pytest.mark.parametrize(
    ("zero", "gib"),
    [(0, [141.9, 152.4, 173.3]), (1, [55.6, 66.1, 87.0]), (2, [41.8, 52.2, 73.2]), (3, [28.7, 39.1, 60.1])],
)
def test_70b_on_64_gpus_by_sequence_and_stage_of_zero(zero: int, gib: list[float]) -> None:
    """Rank 0 has 35.28e9 parameters over tp 4: 4 bytes each, and 12 shared by dp 8, with stage 1."""
    layout = Layout(tp=4, pp=2, dp=8, zero=zero, microbatches=64)
    held = [
        memory(read_model("llama3-70b", sequence=sequence), layout=layout, precision=Precision(), policy=FLASH)
        for sequence in (2048, 4096, 8192)
    ]
    assert [max(rank.total for rank in ranks) / (1 << 30) for ranks in held] == pytest.approx(gib, abs=0.05)
    if zero == 1:
        states = held[0][0].states.total
        assert states == pytest.approx((4 + 12 / 8) * 35.28e9 / 4, rel=1e-3)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("model", "sequence", "gpus", "batch", "mfu"),
    [("llama3-70b", 8192, 64, 512, 0.508), ("llama3-70b", 8192, 512, 1024, 0.501), ("llama2-7b", 4096, 8, 256, 0.551)],
)
def test_the_best_layouts_of_the_exercises(model: str, sequence: int, gpus: int, batch: int, mfu: float) -> None:
    cluster = Cluster(accelerator=H100, gpus=gpus)
    best = found(read_model(model, sequence=sequence), cluster=cluster, batch=batch).ranked[0]
    assert best.prediction.expected_mfu == pytest.approx(mfu, abs=0.001)


# -- configurations -------------------------------------------------------------------------------

MIXTURE = replace(SMALL, experts=Experts(count=8, top_k=2, ffn=256))


@pytest.mark.parametrize("shape", [SMALL, MIXTURE], ids=["dense", "experts"])
def test_the_engine_reads_every_layout_that_it_has(shape: Transformer, tmp_path: Path) -> None:
    """Some layouts of the space on eight ranks, with their sizes."""
    wanted, path = Wanted(engine=True), tmp_path / "plan.toml"
    space = [
        layout
        for mesh in meshes(shape, ranks=8, domain=8, wanted=wanted, rejections=Rejections())
        for series in layouts(shape, mesh, batch=16, wanted=wanted, rejections=Rejections(), domain=4)
        for layout in series
    ]
    assert {layout.replicas for layout in space} == {1, 2}
    for layout in space[:: len(space) // 20]:
        path.write_text(training_file(shape, layout=layout, recompute=Recompute.FULL, tokens=1e6, every=50))
        config = load_config(path)
        parallel = config.parallel
        assert parallel.world_size == layout.ranks
        assert (parallel.tp, parallel.pp, parallel.cp, parallel.ep) == (layout.tp, layout.pp, layout.cp, layout.ep)
        assert (parallel.replicas, parallel.dp_replicate) == (layout.dp, layout.replicas)
        assert parallel.microbatches * config.train.accumulation == layout.microbatches
        assert (config.train.batch, config.train.steps) == (16, round(1e6 / 16 / 256))
        assert config.checkpoint is not None
        assert config.checkpoint.every == 50
    assert len(space) > 50


def test_a_shared_expert_is_written(tmp_path: Path) -> None:
    """The engine's is as wide as the model's feed-forward, 512 channels here."""
    shape = replace(SMALL, experts=Experts(count=8, top_k=2, ffn=256, shared=1, shared_ffn=512))
    path = tmp_path / "plan.toml"
    path.write_text(training_file(shape, layout=Layout(), recompute=Recompute.NONE, tokens=1e6, every=50))
    assert transformer(load_config(path)) == shape


def test_a_shared_expert_of_another_width_is_refused() -> None:
    shape = replace(SMALL, experts=Experts(count=8, top_k=2, ffn=256, shared=1))
    with pytest.raises(UsageError, match="as wide as the model's feed-forward, 512, not 256"):
        training_file(shape, layout=Layout(), recompute=Recompute.NONE, tokens=1e6, every=50)


def test_a_model_that_the_engine_lacks_is_refused() -> None:
    with pytest.raises(UsageError, match="have a gated feed-forward"):
        training_file(
            read_model("gpt3-175b", sequence=2048), layout=Layout(), recompute=Recompute.NONE, tokens=1, every=1
        )
