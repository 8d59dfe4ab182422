"""Configuration files: what is in them arrives, and a mistake is named by its key."""

from pathlib import Path

import pytest

from traincope.engine.config import Config, ExpertsConfig, ModelConfig, OptimizerConfig, TrainConfig
from traincope.engine.load import load_config
from traincope.errors import ConfigError

EXAMPLES = Path(__file__).parents[2] / "examples"

REFUSED = {
    "[modle]\nlayers = 2": "there is no table [modle]; the closest is [model]",
    "[model]\nlayres = 2": "[model] has no key layres; the closest is layers",
    "[parallel]\nfspd = 2": "[parallel] has no key fspd; the closest is fsdp",
    "[model]\nlayers = 2.5": "model.layers = 2.5 is not a whole number",
    "[model]\nlayers = true": "model.layers = True is not a whole number",
    "[optimizer]\nlr = 'fast'": "optimizer.lr = 'fast' is not a number",
    "[parallel]\nsequence_parallel = 1": "parallel.sequence_parallel = 1 is not true or false",
    "[data]\npath = 3": "data.path = 3 is not a string",
    "[train]\nprecision = 'fp16'": "train.precision = 'fp16' is not known; choose one of fp32, bf16",
    "model = 3": "model = 3 is a key, but [model] is a table; put its keys below it",
    "[model]\nlayers = 0": "model.layers = 0 must be greater than 0",
}


def write(directory: Path, text: str) -> Path:
    path = directory / "training.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("text", REFUSED)
def test_a_mistake_is_named_with_file_table_and_remedy(tmp_path: Path, text: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as refused:
        load_config(path)
    message = str(refused.value)
    assert message.startswith(f"{path}: {REFUSED[text]}")


def test_a_file_that_is_no_toml_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, "[model\n")
    with pytest.raises(ConfigError, match="is no TOML: "):
        load_config(path)


def test_a_missing_file_is_named_with_one_to_start_from(tmp_path: Path) -> None:
    path = tmp_path / "gone.toml"
    with pytest.raises(ConfigError) as refused:
        load_config(path)
    assert str(refused.value) == f"{path} does not exist; examples/demo.toml is a configuration to start from"


def test_what_the_file_leaves_out_keeps_its_default(tmp_path: Path) -> None:
    path = write(tmp_path, "[model]\nlayers = 2\n[optimizer]\nlr = 1\n")
    assert load_config(path) == Config(model=ModelConfig(layers=2), optimizer=OptimizerConfig(lr=1.0))


def test_overrides_win_over_the_file_and_the_last_one_over_the_first(tmp_path: Path) -> None:
    path = write(tmp_path, "[train]\nsteps = 3\n")
    overrides = ["train.steps=5", "train.precision=bf16", "train.steps = 7", "optimizer.lr=1e-2"]
    assert load_config(path, overrides=overrides) == Config(
        train=TrainConfig(steps=7, precision="bf16"), optimizer=OptimizerConfig(lr=1e-2)
    )


def test_a_table_that_may_be_missing_is_made_by_its_first_key(tmp_path: Path) -> None:
    assert load_config(write(tmp_path, "")).experts is None
    assert load_config(write(tmp_path, "[experts]\nnumber = 4\n")).experts == ExpertsConfig(number=4)
    assert load_config(write(tmp_path, ""), overrides=["experts.hot_expert=3"]).experts == ExpertsConfig(hot_expert=3)
    with pytest.raises(ConfigError, match=r"\[experts\] has no key topk; the closest is top_k"):
        load_config(write(tmp_path, "[experts]\ntopk = 1\n"))
    with pytest.raises(ConfigError, match=r"experts.ffn = 1.5 is not a whole number"):
        load_config(write(tmp_path, "[experts]\nffn = 1.5\n"))


@pytest.mark.parametrize("override", ["train.steps", "steps=3", "train.=3", ".steps=3"])
def test_an_override_without_table_key_and_value_is_refused(tmp_path: Path, override: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(write(tmp_path, ""), overrides=[override])
    assert str(refused.value) == (
        f"--set {override} is not understood; write --set table.key=value, as in --set train.steps=10"
    )


def test_an_override_of_an_unknown_key_is_refused_like_one_in_the_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\[train\] has no key stepz; the closest is steps"):
        load_config(write(tmp_path, ""), overrides=["train.stepz=2"])


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_the_examples_are_layouts_of_four_ranks_or_of_eight(path: Path) -> None:
    three_dimensional = path.stem == "pp_fsdp_tp"
    assert load_config(path).parallel.world_size == (8 if three_dimensional else 4)
