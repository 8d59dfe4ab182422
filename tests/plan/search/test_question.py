"""Questions to `plan search`, and all-reduces over their size."""

from dataclasses import replace
from math import log2

import pytest

from traincope.errors import UsageError
from traincope.plan.layout.machine import Machine
from traincope.plan.search.clusters import Cluster, find_accelerator
from traincope.plan.search.collectives import curves
from traincope.plan.search.question import Question, answer, find


def exact(cluster: Cluster) -> Machine:
    """Its machine with links that reach their rates."""
    return replace(cluster.machine(), link_share=1.0, network_share=1.0)


def test_the_parts_of_an_answer_sum() -> None:
    question = Question(model="llama3-8b", seq=8192, gpu="h100", gpus=16, batch=64, tp=2, cp=1, micro_batch=1, top=3)
    for ranked in answer(question, find(question))["ranked"]:
        assert sum(ranked["memory"].values()) == ranked["largest_bytes"]
        assert sum(ranked["parts"].values()) == pytest.approx(ranked["step_seconds"])


def test_a_command_line_has_only_options_that_differ_from_the_defaults() -> None:
    question = Question(
        model="a b.toml", gpu="h100", gpus=8, batch=16, micro_batch=2, price_per_gpu_hour=2.5, currency="EUR"
    )
    assert question.command == (
        "traincope plan search --model 'a b.toml' --gpu h100 --gpus 8 --batch 16 --price-per-gpu-hour 2.5 "
        "--currency EUR --micro-batch 2"
    )


def test_a_value_that_is_not_above_0_names_its_option() -> None:
    with pytest.raises(UsageError, match="--micro-batch is 0; it must be greater than 0"):
        Question(model="llama3-8b", gpu="h100", gpus=8, batch=16, micro_batch=0)


def test_an_all_reduce_within_a_node_takes_its_steps_and_its_bytes() -> None:
    """Eight H100: 14 steps of 3.4 us and 7/4 of the bytes at 450 GB/s; a tree 2 x 3 steps and twice the bytes."""
    (curve,) = curves(exact(Cluster(accelerator=find_accelerator("h100"), gpus=8)), ranks=8)
    assert (curve["tier"], curve["ranks"]) == ("domain", 8)
    for num_bytes, ring, tree in zip(curve["num_bytes"], curve["ring_seconds"], curve["tree_seconds"], strict=True):
        assert ring == pytest.approx(14 * 3.4e-6 + 1.75 * num_bytes / 450e9)
        assert tree == pytest.approx(2 * log2(8) * 3.4e-6 + 2 * num_bytes / 450e9)


def test_each_tier_of_links_has_a_curve() -> None:
    cluster = Cluster(accelerator=find_accelerator("h100"), gpus=1024, pod=256, oversubscription=2)
    found = curves(exact(cluster), ranks=1024)
    assert [(each["tier"], each["ranks"]) for each in found] == [("domain", 8), ("rail", 256), ("spine", 1024)]
