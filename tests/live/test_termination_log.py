"""The termination message: only in Kubernetes, only into the file that it made, after what the training wrote."""

from pathlib import Path

from traincope.live.termination_log import MAX_BYTES, write_termination_message

POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}


def test_in_a_pod_the_sentence_follows_what_the_training_wrote(tmp_path: Path) -> None:
    path = tmp_path / "message"
    path.write_text("loss 3.1\n")
    assert write_termination_message("hang: rank 1", {**POD, "TRAINCOPE_TERMINATION_LOG": str(path)})
    assert path.read_text() == "loss 3.1\ntraincope: hang: rank 1\n"


def test_outside_of_kubernetes_the_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "message"
    path.touch()
    assert not write_termination_message("hang: rank 1", {"TRAINCOPE_TERMINATION_LOG": str(path)})
    assert path.read_text() == ""


def test_a_file_that_kubernetes_did_not_make_is_not_made(tmp_path: Path) -> None:
    path = tmp_path / "message"
    assert not write_termination_message("hang: rank 1", {**POD, "TRAINCOPE_TERMINATION_LOG": str(path)})
    assert not path.exists()


def test_a_long_sentence_is_cut_between_two_letters(tmp_path: Path) -> None:
    path = tmp_path / "message"
    path.touch()
    assert write_termination_message("é" * MAX_BYTES, {**POD, "TRAINCOPE_TERMINATION_LOG": str(path)})
    assert MAX_BYTES - 2 <= len(path.read_bytes()) <= MAX_BYTES + 1
