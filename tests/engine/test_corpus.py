"""Text becomes tokens in an order that depends only on the files."""

import os
import sysconfig
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traincope.engine.config import DataConfig
from traincope.engine.corpus import END_OF_DOCUMENT, check_corpus, read_corpus
from traincope.errors import DataError

END = END_OF_DOCUMENT


def all_tokens(config: DataConfig) -> list[int]:
    corpus = read_corpus(config)
    return [*corpus.training.tolist(), *corpus.held_out.tolist()]


def test_a_file_becomes_its_bytes_and_an_end_token(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\x00\xffz")
    assert all_tokens(DataConfig(path=str(path))) == [0, 255, 122, END]


def test_a_folder_is_read_in_the_order_of_file_names(tmp_path: Path) -> None:
    for name, text in {"b/1.txt": "x", "a.txt": "y", "b/0.txt": "z", "c.txt": ""}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert all_tokens(DataConfig(path=str(tmp_path))) == [ord("y"), END, ord("z"), END, ord("x"), END, END]


def test_the_end_of_the_text_is_held_out(tmp_path: Path) -> None:
    path = tmp_path / "digits.txt"
    path.write_text("123456789")
    corpus = read_corpus(DataConfig(path=str(path), held_out=0.35))
    assert corpus.training.tolist() == [ord(digit) for digit in "1234567"]
    assert corpus.held_out.tolist() == [ord("8"), ord("9"), END]


@pytest.mark.parametrize("token_type", ["uint8", "uint16"])
def test_a_token_file_is_mapped_without_conversion(tmp_path: Path, token_type: str) -> None:
    path = tmp_path / "tokens.bin"
    np.arange(200, dtype=token_type).tofile(path)
    config = DataConfig(path=str(path), token_type="uint8" if token_type == "uint8" else "uint16")
    assert all_tokens(config) == list(range(200))
    assert isinstance(read_corpus(config).training, np.memmap)


@pytest.mark.slow
def test_the_library_of_this_python_is_the_default() -> None:
    corpus = read_corpus(DataConfig())
    first = (Path(sysconfig.get_path("stdlib")) / "__future__.py").read_bytes()
    assert len(corpus.training) + len(corpus.held_out) > 5_000_000
    assert bytes(corpus.training[: len(first)].astype(np.uint8)) == first
    assert corpus.training[len(first)] == END


@pytest.mark.slow
def test_reading_twice_gives_the_same_tokens() -> None:
    assert np.array_equal(read_corpus(DataConfig()).held_out, read_corpus(DataConfig()).held_out)


def test_a_missing_path_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "gone"
    with pytest.raises(DataError) as refused:
        read_corpus(DataConfig(path=str(path)))
    assert str(refused.value) == (
        f"data.path {path} does not exist; name a file, a folder or a .bin token file, or leave it out"
    )
    assert refused.value.exit_code == 6


def test_a_folder_without_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    with pytest.raises(DataError) as refused:
        read_corpus(DataConfig(path=str(tmp_path)))
    assert str(refused.value) == f"data.path {tmp_path} contains no text; name a file or folder with text"


def test_half_a_token_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokens.bin"
    path.write_bytes(b"abc")
    with pytest.raises(DataError) as refused:
        read_corpus(DataConfig(path=str(path)))
    assert str(refused.value) == (
        f"{path} has 3 bytes, which is not a whole number of uint16 tokens; write it with numpy's tofile, "
        "or set data.token_type"
    )


def test_a_path_that_is_not_a_file_is_refused_without_a_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder.bin").mkdir()
    for path in tmp_path.iterdir():
        with pytest.raises(DataError) as refused:
            read_corpus(DataConfig(path=str(path)))
        assert str(refused.value) == (
            f"data.path {path} is neither a file or folder of text nor a .bin token file; name one of these"
        )


def refusal(config: DataConfig, *, sequence: int) -> str | None:
    try:
        check_corpus(config, sequence=sequence)
    except DataError as error:
        return str(error)
    return None


@settings(deadline=None, max_examples=50)
@given(texts=st.lists(st.binary(max_size=12), min_size=1, max_size=4), share=st.sampled_from([0.1, 0.35, 0.5, 0.9]))
def test_a_check_by_file_sizes_agrees_with_reading(
    tmp_path_factory: pytest.TempPathFactory, texts: list[bytes], share: float
) -> None:
    """A length passes if both parts have a sequence and its next token; no longer length passes."""
    folder = tmp_path_factory.mktemp("texts")
    for number, text in enumerate(texts):
        (folder / str(number)).write_bytes(text)
    config = DataConfig(path=str(folder), held_out=share)
    if not any(texts):
        assert refusal(config, sequence=1) == f"data.path {folder} contains no text; name a file or folder with text"
        return
    corpus = read_corpus(config)
    longest = min(len(corpus.training), len(corpus.held_out)) - 1
    for length in (1, max(longest, 1), max(longest, 0) + 1):
        assert (refusal(config, sequence=length) is None) == (length <= longest)


def test_the_error_names_the_part_that_is_too_short(tmp_path: Path) -> None:
    """10 tokens, 7 of them for training."""
    path = tmp_path / "tokens.bin"
    np.arange(10, dtype=np.uint16).tofile(path)
    config = DataConfig(path=str(path), held_out=0.3)
    assert refusal(config, sequence=2) is None
    remedy = "give more text, or a smaller model.sequence"
    assert refusal(config, sequence=3) == (
        f"the held-out part of {path} has 3 tokens, too few for one sequence of 3; {remedy}"
    )
    assert refusal(config, sequence=7) == f"{path} has 7 tokens, too few for one sequence of 7; {remedy}"


def test_the_library_is_long_enough_for_any_sequence_in_use() -> None:
    assert refusal(DataConfig(), sequence=100_000) is None
