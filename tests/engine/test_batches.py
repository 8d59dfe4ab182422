"""Global batches are the same in each layout, and their slices tile them."""

from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from traincope.engine.batches import BatchSlices, held_out_batches, training_batches
from traincope.engine.config import Config, DataConfig, ModelConfig, ParallelConfig, TrainConfig
from traincope.engine.corpus import Corpus
from traincope.errors import DataError


def config(parallel: ParallelConfig | None = None, *, seed: int = 0, workers: int = 0, vocabulary: int = 257) -> Config:
    return Config(
        model=ModelConfig(sequence=4, vocabulary=vocabulary),
        data=DataConfig(workers=workers),
        parallel=parallel or ParallelConfig(),
        train=TrainConfig(steps=3, batch=8, seed=seed, evaluation_batches=2),
    )


def corpus(tokens: int = 101) -> Corpus:
    """Training tokens 0, 1, 2, ... and held-out tokens 200, 201, ..., so that each token shows its place."""
    return Corpus(
        training=np.arange(tokens, dtype=np.uint16), held_out=np.arange(200, 241, dtype=np.uint16), source="numbers"
    )


def batches(config: Config, *, replica: int = 0) -> list[torch.Tensor]:
    return list(training_batches(config, corpus(), replica=replica))


def test_a_sequence_has_length_plus_one_consecutive_tokens() -> None:
    for batch in batches(config()):
        assert batch.shape == (8, 5)
        assert batch.dtype == torch.int64
        assert torch.equal(batch, batch[:, :1] + torch.arange(5))
        assert torch.all(batch[:, 0] % 4 == 0)


def test_an_epoch_has_each_sequence_once() -> None:
    slices = BatchSlices(sequences=24, batch=8, steps=range(3), replica=0, replicas=1, seed=7)
    assert sorted(index for batch in slices for index in batch) == list(range(24))


@given(replicas=st.sampled_from([1, 2, 4, 8]), seed=st.none() | st.integers(0, 2**32), sequences=st.integers(1, 40))
def test_slices_tile_the_global_batch(replicas: int, seed: int | None, sequences: int) -> None:
    def slices(replica: int, replicas: int) -> list[list[int]]:
        return list(
            BatchSlices(sequences=sequences, batch=8, steps=range(3), replica=replica, replicas=replicas, seed=seed)
        )

    parts = [slices(replica, replicas) for replica in range(replicas)]
    assert [list(chain(*step)) for step in zip(*parts, strict=True)] == slices(0, 1)


@given(seed=st.none() | st.integers(0, 2**32), sequences=st.integers(1, 40), done=st.integers(0, 12))
def test_slices_after_some_steps_are_those_of_a_training_from_the_begin(
    seed: int | None, sequences: int, done: int
) -> None:
    def slices(steps: range) -> list[list[int]]:
        return list(BatchSlices(sequences=sequences, batch=8, steps=steps, replica=1, replicas=2, seed=seed))

    assert slices(range(done, 12)) == slices(range(12))[done:]


def test_loaders_draw_no_number_that_training_could_draw() -> None:
    before = torch.get_rng_state()
    batches(config())
    assert torch.equal(torch.get_rng_state(), before)


def test_replicas_get_their_slice_of_the_same_batches() -> None:
    halves = [batches(config(ParallelConfig(fsdp=2)), replica=replica) for replica in (0, 1)]
    for whole, first, second in zip(batches(config()), *halves, strict=True):
        assert torch.equal(whole, torch.cat((first, second)))


def test_the_seed_decides_the_order() -> None:
    first, repeated, other = batches(config(seed=1)), batches(config(seed=1)), batches(config(seed=2))
    assert torch.equal(torch.stack(first), torch.stack(repeated))
    assert not torch.equal(torch.stack(first), torch.stack(other))


def test_background_workers_do_not_change_batches() -> None:
    assert torch.equal(torch.stack(batches(config(workers=1))), torch.stack(batches(config())))


def test_held_out_batches_are_the_held_out_text_in_order() -> None:
    first, second = held_out_batches(config(), corpus(), replica=0)
    assert first[:, 0].tolist() == [200, 204, 208, 212, 216, 220, 224, 228]
    assert second[:, 0].tolist() == [232, 236, 200, 204, 208, 212, 216, 220]


def test_a_token_outside_the_vocabulary_is_reported() -> None:
    small = Config(
        model=ModelConfig(sequence=4, vocabulary=50), data=DataConfig(path="x.bin"), train=TrainConfig(batch=25)
    )
    with pytest.raises(DataError, match=r"numbers holds token .* but model.vocabulary is 50; raise it"):
        list(training_batches(small, corpus(), replica=0))


def test_a_text_shorter_than_a_sequence_is_refused() -> None:
    with pytest.raises(DataError) as refused:
        training_batches(config(), corpus(tokens=4), replica=0)
    assert str(refused.value) == (
        "numbers has 4 tokens, too few for one sequence of 4; give more text, or a smaller model.sequence"
    )
