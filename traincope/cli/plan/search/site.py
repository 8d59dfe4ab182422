"""Arguments of the place where a training is to run: its cluster, prices and failures."""

import argparse
from dataclasses import fields

from traincope.cli.quantities import add_price, quantity, whole
from traincope.plan.search.clusters import ACCELERATORS
from traincope.plan.search.job import TOKENS_PER_PARAMETER
from traincope.plan.search.question import RANK_MTBF_HOURS, SiteOptions


def add_cluster(cluster: argparse._ArgumentGroup) -> None:
    """Add the GPUs and their network."""
    cluster.add_argument("--gpu", required=True, metavar="GPU", help=f"one of {', '.join(ACCELERATORS)}")
    cluster.add_argument("--gpus", type=whole, required=True, metavar="N", help="number of GPUs")
    cluster.add_argument(
        "--domain", type=whole, metavar="N", help="GPUs of one link domain, 72 in an NVL72 (default: data sheet)"
    )
    cluster.add_argument(
        "--rails", type=whole, metavar="N", help="network links of a link domain (default: one per GPU)"
    )
    cluster.add_argument(
        "--pod", type=whole, metavar="N", help="GPUs that reach each other without the spine (default: all)"
    )
    cluster.add_argument(
        "--oversubscription",
        type=quantity,
        default=1.0,
        metavar="X",
        help="rate into the spine's switches over the rate out of them (default: 1)",
    )
    cluster.add_argument(
        "--reserve",
        type=quantity,
        default=0.1,
        metavar="X",
        help="share of the memory that stays free for what the formulas leave out (default: 0.1)",
    )


def add_job(job: argparse._ArgumentGroup) -> None:
    """Add the amount of the training, its prices and its failures."""
    job.add_argument(
        "--tokens",
        type=quantity,
        metavar="X",
        help=f"tokens of the training (default: {TOKENS_PER_PARAMETER} per parameter)",
    )
    add_price(job)
    job.add_argument("--pue", type=quantity, default=1.0, metavar="X", help="the site's PUE, for energy (default: 1)")
    job.add_argument(
        "--gpu-mtbf-hours",
        type=quantity,
        default=RANK_MTBF_HOURS,
        metavar="X",
        help=f"mean time between failures of one GPU (default: {RANK_MTBF_HOURS:,.0f}, of Llama 3)",
    )
    job.add_argument(
        "--save-seconds", type=quantity, default=40.0, metavar="X", help="stop for a checkpoint (default: 40)"
    )
    job.add_argument(
        "--restart-seconds", type=quantity, default=600.0, metavar="X", help="time of a restart (default: 600)"
    )


def site(arguments: argparse.Namespace) -> SiteOptions:
    """The site of the arguments. Raises UsageError for impossible values."""
    return SiteOptions(**{each.name: getattr(arguments, each.name) for each in fields(SiteOptions)})
