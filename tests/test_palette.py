import re

from traincope.palette import ACTIONS, colour, shade, tint

TERMS = (
    *("forward", "backward", "recompute", "optimizer", "other_compute"),
    *(f"exposed_transfer[{axis}]" for axis in ("pp", "dp_replicate", "dp", "fsdp", "dp_cp", "cp", "tp", "ep")),
    *(f"exposed_wait[{axis}]" for axis in ("pp", "dp_replicate", "dp", "fsdp", "dp_cp", "cp", "tp", "ep")),
    *("bubble.schedule", "bubble.imbalance", "bubble.jitter"),
    *("data_wait", "checkpoint_stall", "evaluation"),
    *("ideal", "redundant_compute", "kernel_inefficiency"),
    *("productive", "lost", "rolled_back", "skipped", "startup", "restart", "other"),
    *("exposed_memory", "gc", "compile", "sync", "launch_gap", "kernel_wait", "unattributed"),
)


def test_every_term_has_a_colour_of_its_own() -> None:
    colours = {term: colour(term) for term in TERMS}
    assert len(set(colours.values())) == len(TERMS)
    assert all(re.fullmatch(r"#[0-9A-F]{6}", value) for value in colours.values())


def test_the_families_start_at_the_hues_of_okabe_and_ito() -> None:
    assert colour("forward") == "#009E73"
    assert colour("exposed_transfer[pp]") == "#E69F00"
    assert colour("exposed_wait[pp]") == "#D55E00"
    assert colour("bubble.schedule") == "#0072B2"
    assert colour("bubble.imbalance") == "#56B4E9"
    assert colour("data_wait") == "#CC79A7"
    assert colour("gc") == "#F0E442"


def test_an_unknown_axis_has_the_colour_of_communication() -> None:
    assert colour("exposed_wait[my_axis]") == colour("exposed_wait[world]") != colour("exposed_wait[ep]")


def test_an_unknown_term_is_grey() -> None:
    assert colour("[red]nonsense[/red]") == "#999999"


def test_a_tint_moves_each_channel_towards_white() -> None:
    assert tint("#000000", 0.5) == "#808080"
    assert tint("#009E73", 0.0) == "#009E73"
    assert tint("#009E73", 1.0) == "#FFFFFF"


def test_a_shade_moves_each_channel_towards_black() -> None:
    assert shade("#FF8040", 0.5) == "#804020"


def test_a_forward_looks_alike_in_the_ledger_and_in_a_pipeline_and_a_backward_otherwise() -> None:
    assert ACTIONS["F"] == colour("forward")
    assert len({ACTIONS["F"], ACTIONS["B"], ACTIONS["W"]}) == 3
