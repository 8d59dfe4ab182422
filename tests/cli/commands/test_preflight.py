"""Bad input of `traincope preflight`: exit code 2 and one sentence with the field and the nearest valid choice."""

from pathlib import Path

import pytest

from traincope.cli.main import main

PIPELINE = "[parallel]\npp = 2\nmicrobatches = 2\n[train]\nbatch = 4\n"


@pytest.mark.parametrize(
    ("toml", "words", "sentence"),
    [
        (PIPELINE, ["--alarm", "150"], "--alarm is 150; give a percentage above 0 and at most 100, the nearest is 100"),
        (PIPELINE, ["--alarm", "0"], "--alarm is 0; give a percentage above 0 and at most 100, the nearest is 1"),
        (PIPELINE, ["--steps", "-3"], "--steps is -3; give 0 to 10000, the nearest is 0"),
        (PIPELINE, ["--repeats", "1"], "--repeats is 1; give 2 to 100, the nearest is 2"),
        ("[paralel]\npp = 2\n", [], "there is no table [paralel]; did you mean [parallel]?"),
        ("[parallel]\npipline = 2\n", [], "[parallel] has no key pipline; did you mean"),
        (
            PIPELINE,
            ["--set", "parallel.schedule=1f1c"],
            "parallel.schedule = '1f1c' is not known; choose one of",
        ),
        (PIPELINE, ["--set", "train.batch=3"], "train.batch = 3"),
    ],
)
def test_bad_input_is_one_sentence_with_a_valid_choice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], toml: str, words: list[str], sentence: str
) -> None:
    path = tmp_path / "config.toml"
    path.write_text(toml)
    with pytest.raises(SystemExit) as ended:
        main(["preflight", str(path), *words])
    error = capsys.readouterr().err
    assert ended.value.code == 2
    assert sentence in error
    assert error.startswith("traincope preflight: ")
    assert len(error.splitlines()) == 1


def test_a_missing_file_is_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["preflight", str(tmp_path / "no.toml")])
    assert ended.value.code == 2
    assert "no.toml does not exist" in capsys.readouterr().err
