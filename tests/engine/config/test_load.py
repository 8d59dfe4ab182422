"""Configuration files: values arrive, and a mistake is reported with its key."""

from pathlib import Path

import pytest

from traincope.engine.config import Config, ExpertsConfig, ModelConfig, OptimizerConfig, TrainConfig
from traincope.engine.config.load import load_config
from traincope.errors import ConfigError

EXAMPLES = Path(__file__).parents[3] / "examples"

REFUSED = {
    "[modle]\nlayers = 2": "there is no table [modle]; did you mean [model]?",
    "[model]\nlayres = 2": "[model] has no key layres; did you mean layers?",
    "[parallel]\nfspd = 2": "[parallel] has no key fspd; did you mean fsdp?",
    "[model]\nlayers = 2.5": "model.layers is 2.5; give a whole number",
    "[model]\nlayers = true": "model.layers is True; give a whole number",
    "[optimizer]\nlr = 'fast'": "optimizer.lr is 'fast'; give a number",
    "[parallel]\nsequence_parallel = 1": "parallel.sequence_parallel is 1; give true or false",
    "[data]\npath = 3": "data.path is 3; give a string",
    "[train]\nprecision = 'int8'": "train.precision is 'int8'; choose one of fp32, bf16, fp16, fp8",
    "model = 3": "model = 3 is a key, but [model] is a table; put its keys below it",
    "[model]\nlayers = 0": "model.layers is 0; it must be greater than 0",
}


def write(directory: Path, text: str) -> Path:
    path = directory / "training.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("text", REFUSED)
def test_a_mistake_is_reported_with_file_table_and_remedy(tmp_path: Path, text: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as refused:
        load_config(path)
    message = str(refused.value)
    assert message.startswith(f"{path}: {REFUSED[text]}")


def test_a_file_that_is_not_toml_is_reported(tmp_path: Path) -> None:
    path = write(tmp_path, "[model\n")
    with pytest.raises(ConfigError, match="is not valid TOML: "):
        load_config(path)


def test_a_missing_file_is_reported_with_an_example_file(tmp_path: Path) -> None:
    path = tmp_path / "gone.toml"
    with pytest.raises(ConfigError) as refused:
        load_config(path)
    assert str(refused.value) == f"{path} does not exist; examples/demo.toml is a configuration to start from"


def test_omitted_keys_keep_their_defaults(tmp_path: Path) -> None:
    path = write(tmp_path, "[model]\nlayers = 2\n[optimizer]\nlr = 1\n")
    assert load_config(path) == Config(model=ModelConfig(layers=2), optimizer=OptimizerConfig(lr=1.0))


def test_overrides_replace_the_file_and_the_last_override_counts(tmp_path: Path) -> None:
    path = write(tmp_path, "[train]\nsteps = 3\n")
    overrides = ["train.steps=5", "train.precision=bf16", "train.steps = 7", "optimizer.lr=1e-2"]
    assert load_config(path, overrides=overrides) == Config(
        train=TrainConfig(steps=7, precision="bf16"), optimizer=OptimizerConfig(lr=1e-2)
    )


def test_an_optional_table_is_created_by_its_first_key(tmp_path: Path) -> None:
    assert load_config(write(tmp_path, "")).experts is None
    assert load_config(write(tmp_path, "[experts]\nnumber = 4\n")).experts == ExpertsConfig(number=4)
    assert load_config(write(tmp_path, ""), overrides=["experts.hot_expert=3"]).experts == ExpertsConfig(hot_expert=3)
    with pytest.raises(ConfigError, match=r"\[experts\] has no key topk; did you mean top_k"):
        load_config(write(tmp_path, "[experts]\ntopk = 1\n"))
    with pytest.raises(ConfigError, match=r"experts.ffn is 1.5; give a whole number"):
        load_config(write(tmp_path, "[experts]\nffn = 1.5\n"))


@pytest.mark.parametrize("override", ["train.steps", "steps=3", "train.=3", ".steps=3"])
def test_an_override_without_table_key_and_value_is_refused(tmp_path: Path, override: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(write(tmp_path, ""), overrides=[override])
    assert str(refused.value) == (
        f"--set {override} is not understood; write --set table.key=value, as in --set train.steps=10"
    )


def test_an_override_of_an_unknown_key_is_refused_like_one_in_the_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\[train\] has no key stepz; did you mean steps"):
        load_config(write(tmp_path, ""), overrides=["train.stepz=2"])


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_the_examples_are_layouts_of_four_ranks_or_of_eight(path: Path) -> None:
    three_dimensional = path.stem == "pp_fsdp_tp"
    assert load_config(path).parallel.world_size == (8 if three_dimensional else 4)
