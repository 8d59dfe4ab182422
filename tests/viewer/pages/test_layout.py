"""The layout page's fields, and their effect on a model."""

import json

import pytest
from dash import html

from traincope.cli.main import main
from traincope.errors import UsageError
from traincope.viewer.pages.layout import speed_tiles
from traincope.viewer.planning.one_layout import PRESETS, document, prediction

MIXTRAL = PRESETS["8x7B on 64"]


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_fits_its_gpus(name: str) -> None:
    assert prediction(PRESETS[name]).fits


def test_experts_use_their_own_axis_which_shares_their_memory() -> None:
    spread, whole = prediction(MIXTRAL), prediction({**MIXTRAL, "ep": "1"})
    assert "ep" in spread.axis_seconds
    assert "ep" not in whole.axis_seconds
    assert max(rank.total for rank in spread.memory) < max(rank.total for rank in whole.memory)


def test_a_model_without_experts_has_no_axis_of_theirs() -> None:
    with pytest.raises(UsageError, match="ep = 8 needs experts, and the model has none"):
        prediction({**MIXTRAL, "experts": "0"})


@pytest.mark.parametrize(("fits", "names"), [(True, ["MFU", "step time"]), (False, ["MFU"])])
def test_a_layout_that_does_not_fit_has_no_speed(fits: bool, names: list[str]) -> None:
    shown = speed_tiles(lambda key, **_: html.Span(key), fits=fits)
    assert [each.children[1].children for each in shown] == names
    assert ("expected_mfu" in str(shown)) == fits


def test_the_pages_memory_equals_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    """Compares with `traincope plan memory` for the first preset."""
    sizes = "--layers 80 --hidden 8192 --heads 64 --kv-heads 8 --ffn 28672 --vocab 128256 --seq 8192"
    mesh = "--dp 4 --tp 8 --pp 2 --zero 1 --microbatches 32 --schedule 1f1b --recompute selective"
    how = "--gated-mlp --untied --flash --no-dropout --format json"
    with pytest.raises(SystemExit) as exit_info:
        main(["plan", "memory", *f"{sizes} {mesh} {how}".split()])
    assert exit_info.value.code == 0
    printed = json.loads(capsys.readouterr().out)
    chosen = PRESETS["70B on 64"]
    shown = document(chosen, prediction(chosen))
    assert (shown["ranks"], shown["largest_bytes"]) == (printed["ranks"], printed["largest_bytes"])


SHARDED = {**PRESETS["70B on 64"], "dp": "64", "tp": "1", "pp": "1", "zero": "3", "microbatches": "2"}
PARAMETERS = 80 * (2 * 8192 * 8192 + 2 * 8192 * 1024 + 3 * 8192 * 28672) + 2 * 128256 * 8192


def test_zeropp_sends_int8_and_gathers_for_backward_in_the_node() -> None:
    """2 microbatches: 63 / 64 of int8 with a scale for 256 numbers over the network, and 7 / 8 of bf16 in the node."""
    fields = {"node-ranks": "8", "quantize-weights": "yes", "quantize-gradients": "yes"}
    seconds = prediction({**SHARDED, **fields}).axis_seconds["dp"]
    int8 = 1 + 4 / 256
    gathered = 63 / 64 * int8 * PARAMETERS / 400e9
    exchanged = 56 / 64 * int8 * PARAMETERS / 50e9
    within = 7 / 8 * 2 * PARAMETERS / 450e9
    assert seconds == pytest.approx(2 * (gathered + exchanged + within), rel=0.01)


def test_offload_takes_the_rates_of_the_server() -> None:
    """Of 1 / 64 of the parameters: 44 bytes over 76.8 GB/s, and 4 of gradients and weights in bf16 over 63 GB/s."""
    plan = prediction({**SHARDED, "offload-optimizer": "cpu"})
    assert plan.offload_seconds == pytest.approx(PARAMETERS / 64 * (44 / 76.8e9 + 4 / 63e9), rel=0.001)
    assert not prediction({**SHARDED, "offload-optimizer": "cpu", "server": "unknown"}).fits
    with pytest.raises(UsageError, match="offload-optimizer = 'disk' is not one of device, cpu, nvme"):
        prediction({**SHARDED, "offload-optimizer": "disk"})
    with pytest.raises(UsageError, match="weights lie outside the devices only with ZeRO stage 3"):
        prediction({**SHARDED, "zero": "2", "offload-parameters": "cpu"})
