"""The settings that a checkpoint must share with the training that loads it, or with its bit-exact continuation."""

from collections.abc import Mapping
from dataclasses import asdict

from traincope.engine.config import AXES, Config
from traincope.engine.corpus import Corpus

Settings = Mapping[str, object]
"""Dotted key -> value, as JSON has it."""
RANK_STATE = ("ep", "sequence_parallel", "schedule", "virtual")
"""Settings of `[parallel]`, besides its axes, that decide the state of single ranks."""


def identity(config: Config, corpus: Corpus) -> Settings:
    """Model, data and order of the data. A training with another identity is another training."""
    return {
        **_keys("model", asdict(config.model)),
        **_keys("experts", asdict(config.experts) if config.experts is not None else {}),
        "data.tokens": len(corpus.training),
        "data.digest": corpus.digest(),
        "data.end_of_document": config.data.end_of_document,
        "train.seed": config.train.seed,
        "train.batch": config.train.batch,
    }


def layout(config: Config) -> Settings:
    """Settings that decide the state of single ranks and their random numbers. That state fits only the same layout."""
    parallel = {name: getattr(config.parallel, name) for name in (*AXES, *RANK_STATE)}
    return {**_keys("parallel", parallel), **_keys("ddp", asdict(config.ddp))}


def difference(saved: Settings, wanted: Settings) -> str | None:
    """Name the first key with another value, or None."""
    for key in sorted({*saved, *wanted}):
        if saved.get(key) != wanted.get(key):
            return f"{key} is {saved.get(key)!r} there and {wanted.get(key)!r} here"
    return None


def _keys(table: str, values: Mapping[str, object]) -> Settings:
    return {f"{table}.{name}": value for name, value in values.items()}
