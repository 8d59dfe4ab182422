"""Turn tokens into batches: each data-parallel rank gets its slice of the same global batches.

A batch depends only on seed, step and tokens, never on the layout. With R replicas, the slices of replicas 0 .. R-1 in
order form the batch that a single process gets.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from traincope.engine.config import Config
from traincope.engine.corpus import Corpus, Tokens, held_out_part, require_sequence
from traincope.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequences(Dataset[Tensor]):
    """Sequences of a token array.

    Sequence i is int64 of shape (length + 1,); inputs and targets overlap.
    """

    tokens: Tokens
    length: int
    vocabulary: int
    source: str

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.length

    def __getitem__(self, index: int) -> Tensor:
        start = index * self.length
        sequence = self.tokens[start : start + self.length + 1].astype(np.int64)
        if sequence.max() >= self.vocabulary:
            raise DataError(
                f"{self.source} holds token {sequence.max()} near position {start}, but model.vocabulary is "
                f"{self.vocabulary}; raise it, or check data.token_type"
            )
        return torch.from_numpy(sequence)


class BatchSlices(Sampler[list[int]]):
    """Per step, the numbers of the sequences in one replica's slice of the global batch."""

    def __init__(
        self, *, sequences: int, batch: int, steps: range, replica: int, replicas: int, seed: int | None
    ) -> None:
        """`steps` count from 0. `batch` counts sequences over all `replicas`. `seed` None keeps the text in order."""
        self._sequences = sequences
        self._batch = batch
        self._steps = steps
        self._slice = slice(replica * batch // replicas, (replica + 1) * batch // replicas)
        self._seed = seed

    def __len__(self) -> int:
        return len(self._steps)

    def __iter__(self) -> Iterator[list[int]]:
        order = self._order(self._steps.start * self._batch)
        for _ in self._steps:
            yield [next(order) for _ in range(self._batch)][self._slice]

    def _order(self, first: int) -> Iterator[int]:
        """Yield each sequence once per epoch, without end, from place `first` of that order."""
        epoch, within = divmod(first, self._sequences)
        while True:
            yield from self._epoch(epoch)[within:]
            epoch, within = epoch + 1, 0

    def _epoch(self, epoch: int) -> Sequence[int]:
        if self._seed is None:
            return range(self._sequences)
        order: list[int] = np.random.default_rng([self._seed, epoch]).permutation(self._sequences).tolist()
        return order


def training_batches(
    config: Config, corpus: Corpus, *, replica: int, done: int = 0, passed_over: int = 0
) -> DataLoader[Tensor]:
    """One slice per step after the first `done` steps, int64 of shape (batch / replicas, sequence + 1).

    `passed_over`: batches of the order that no step before has used.
    """
    sequences = _sequences(config, corpus.training, source=corpus.source)
    steps = range(done + passed_over, config.train.steps + passed_over)
    return _loader(config, sequences, steps=steps, replica=replica, seed=config.train.seed)


def held_out_batches(config: Config, corpus: Corpus, *, replica: int) -> DataLoader[Tensor]:
    """The first batches of the held-out text, in order; the same at each evaluation."""
    sequences = _sequences(config, corpus.held_out, source=held_out_part(corpus.source))
    return _loader(config, sequences, steps=range(config.train.evaluation_batches), replica=replica, seed=None)


def _sequences(config: Config, tokens: Tokens, *, source: str) -> Sequences:
    require_sequence(len(tokens), length=config.model.sequence, source=source)
    return Sequences(tokens=tokens, length=config.model.sequence, vocabulary=config.model.vocabulary, source=source)


def _loader(
    config: Config, sequences: Sequences, *, steps: range, replica: int, seed: int | None
) -> DataLoader[Tensor]:
    """Load the slices of `steps`. The loader has a generator of its own: it draws nothing that training would draw."""
    slices = BatchSlices(
        sequences=len(sequences),
        batch=config.train.batch,
        steps=steps,
        replica=replica,
        replicas=config.parallel.replicas,
        seed=seed,
    )
    workers = config.data.workers
    return DataLoader(
        sequences, batch_sampler=slices, num_workers=workers, persistent_workers=False, generator=torch.Generator()
    )
