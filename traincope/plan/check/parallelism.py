"""Rules of the mesh: its axes on the links, and its pipeline."""

from collections.abc import Iterator
from dataclasses import replace

from traincope.plan.check.predicting import saved_ratio
from traincope.plan.check.problem import Problem, Site
from traincope.plan.check.training_plan import TrainingPlan

ENOUGH_MICROBATCHES = 4
"""Microbatches per pipeline rank from which on the bubble is small: Huang et al. 2019, section 2.3."""


def tensor_parallel_within_domain(plan: TrainingPlan, site: Site) -> Iterator[Problem]:
    """tp stays within the link domain, because its collectives are exposed."""
    domain = site.cluster.domain or site.cluster.accelerator.domain
    if plan.tp is None or plan.tp <= domain:
        return
    yield Problem(
        message=f"tp = {plan.tp} is wider than the link domain of {domain} GPUs: each layer waits for the network",
        fix=f"Set tp to at most {domain}, and use pp or FSDP for the rest.",
    )


def enough_microbatches(plan: TrainingPlan, site: Site) -> Iterator[Problem]:
    """A pipeline has four microbatches per rank."""
    layout = plan.layout
    if layout is None or layout.pp == 1 or layout.microbatches >= ENOUGH_MICROBATCHES * layout.pp:
        return
    enough = ENOUGH_MICROBATCHES * layout.pp
    more = replace(layout, microbatches=enough)
    few = "1 microbatch" if layout.microbatches == 1 else f"{layout.microbatches} microbatches"
    yield Problem(
        message=f"a pipeline of pp = {layout.pp} ranks idles with {few} per step",
        fix=f"Use {enough} microbatches or more: smaller ones, or a larger batch.",
        lost_ratio=saved_ratio(plan, site, layout=more, scale=layout.microbatches / enough),
    )


def all_rails(plan: TrainingPlan, site: Site) -> Iterator[Problem]:
    """Each GPU of a node has a network link of its own."""
    cluster = site.cluster
    domain = cluster.domain or cluster.accelerator.domain
    if cluster.rails is None or cluster.rails >= domain or cluster.gpus <= domain:
        return
    whole = replace(cluster, rails=domain)
    yield Problem(
        message=f"{domain} GPUs share {cluster.rails} network link{'s' * (cluster.rails > 1)}",
        fix=f"Use {domain} links per node, one for each GPU (NCCL_IB_HCA must list all of them).",
        lost_ratio=saved_ratio(plan, site, machine=whole.machine()),
    )
