"""Constants of families of devices that no data sheet prints: what kernels and links reach.

`make truth-plan` fits them on published trainings on A100 and H100, and prints the fit. Each family has 11 of them, and
those of `layout.kernels` that all share. The distances of the fit from what such devices are known to reach, and their
sources, are in `evaluation/truth/formulas/fitting.py`.
"""

from dataclasses import dataclass, replace

from traincope.plan.layout.kernels import Kernels
from traincope.plan.layout.machine import Machine

LEVEL = 0.8
"""Share of held-out trainings whose step lies inside the interval of its prediction."""


FLASH_2_ON_HOPPER = 0.371
"""Share of peak that FlashAttention 2 reaches with long sequences and wide heads. With 8,192 tokens and heads of 128 it
reaches 306.2 of 989.4 TFLOP/s (Dao-AILab/flash-attention, pull request 1893), by `HOPPER` 0.834 of this share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Devices of one architecture."""

    name: str
    kernels: Kernels
    link_share: float
    """Share of the domain's links' rates that collectives reach."""
    network_share: float
    """Share of the network's rate that collectives reach."""
    source: str = ""
    """Trainings on which the constants are fitted."""
    spread: float | None = None
    """Half of the interval's width in logs, for software and clusters with other rows in the tables. None: no training
    on such a device is known, so there is no interval."""
    other_spread: float | None = None
    """The same for software and clusters without any."""

    def applied(self, machine: Machine) -> Machine:
        return replace(machine, kernels=self.kernels, link_share=self.link_share, network_share=self.network_share)


AMPERE = Family(
    name="Ampere",
    kernels=Kernels(
        product=0.768,
        depth=126,
        processors=108,
        attention=0.648,
        attention_head=15.6,
        attention_tokens=402,
        triton=0.669,
        copies=0.666,
        unhidden=0.4,
        contention=0.392,
    ),
    link_share=0.757,
    network_share=0.791,
    source="56 published trainings on A100",
    spread=0.089,
    other_spread=0.149,
)
HOPPER = Family(
    name="Hopper",
    kernels=Kernels(
        product=0.69,
        depth=248,
        processors=132,
        attention=0.59,
        attention_head=15.2,
        attention_tokens=588,
        triton=0.379,
        ordered=FLASH_2_ON_HOPPER,
        copies=0.658,
        unhidden=0.34,
        contention=0.378,
    ),
    link_share=0.794,
    network_share=0.75,
    source="73 published trainings on H100",
    spread=0.058,
    other_spread=0.092,
)


def like_hopper(name: str, *, processors: int | None) -> Family:
    """A family without known trainings: Hopper's constants, as shares of its own rates, and no interval."""
    kernels = replace(HOPPER.kernels, processors=processors)
    return replace(
        HOPPER, name=name, kernels=kernels, source=f"{HOPPER.source}, none on {name}", spread=None, other_spread=None
    )


H200 = like_hopper("H200", processors=132)
BLACKWELL = like_hopper("Blackwell", processors=148)
CDNA3 = like_hopper("CDNA 3", processors=304)
SYSTOLIC = like_hopper("TPU and Trainium", processors=None)
