"""A number of parameters gives a shape of that size, in the proportions of published models."""

import pytest

from traincope.cli.main import main
from traincope.errors import UsageError
from traincope.plan.model.sizes import parameters_of, shape_of_size
from traincope.plan.model.sources import PRESETS, read_model

SIZES = [10_000_000, 124_000_000, 350_000_000, 1_300_000_000, 3_000_000_000, 13 * 10**9, 175 * 10**9, 10**12, 10**14]


@pytest.mark.parametrize("parameters", SIZES)
def test_the_shape_has_so_many_parameters(parameters: int) -> None:
    shape = shape_of_size(parameters)
    assert shape.parameters == pytest.approx(parameters, rel=0.01)
    assert 64 <= shape.hidden / shape.layers <= 500


@pytest.mark.parametrize("name", ["llama3-8b", "llama3-70b", "llama3-405b"])
def test_the_shape_is_close_to_that_of_the_published_model_of_this_size(name: str) -> None:
    published = PRESETS[name]
    assumed = shape_of_size(published.parameters, sequence=published.sequence)
    assert assumed.parameters == pytest.approx(published.parameters, rel=0.001)
    assert assumed.hidden == pytest.approx(published.hidden, rel=0.1)
    assert assumed.layers == pytest.approx(published.layers, rel=0.2)


@pytest.mark.parametrize(("text", "number"), [("70e9", 70 * 10**9), ("70B", 70 * 10**9), ("1.3b", 1_300_000_000)])
def test_numbers_have_several_spellings(text: str, number: int) -> None:
    assert parameters_of(text) == number
    assert read_model(text, sequence=4_096) == shape_of_size(number, sequence=4_096)


@pytest.mark.parametrize("text", ["", "70", "5K", "-70e9", "1e30", "nan"])
def test_other_texts_and_unusual_numbers_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        read_model(text, sequence=4_096)


def test_standard_error_names_a_shape_that_gives_the_same_answer(capsys: pytest.CaptureFixture[str]) -> None:
    answer, assumed = _flops(["--parameters", "8B"], capsys)
    assert _flops(assumed.partition(": ")[2].split(), capsys) == (answer, "")


def _flops(model: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    rest = ["--batch", "8", "--gpus", "1", "--peak-tflops", "100", "--iteration-seconds", "10"]
    with pytest.raises(SystemExit) as ended:
        main(["plan", "flops", *model, *rest])
    assert ended.value.code == 0
    answer, note = capsys.readouterr()
    return answer, note
