"""Save and restore a trainer.

checkpoints = Checkpoints(trainer, config, directory=directory)
checkpoints.begin(resume=True)
for result in trainer.steps():
    if result.rolls_back:
        checkpoints.roll_back()
    else:
        checkpoints.save_if_due()
checkpoints.finish()
"""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist
import torch.distributed.checkpoint
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException

from traincope.engine.checkpoint import directory as folder
from traincope.engine.checkpoint.cadence import Cadence, Interval
from traincope.engine.checkpoint.claim import Claim, Claimant, same_launch, take
from traincope.engine.checkpoint.identity import Settings, difference, identity, layout
from traincope.engine.checkpoint.manifest import Damaged, Manifest, Sum, Unreadable, check_file, read_manifest
from traincope.engine.checkpoint.rank_state import rank_state, set_rank_state
from traincope.engine.checkpoint.tensors import SCALING, after_loading, tensors_of
from traincope.engine.checkpoint.writer import Writer
from traincope.engine.config import CheckpointConfig
from traincope.engine.ranks.generators import seed_generators
from traincope.engine.trainer import Trainer
from traincope.errors import CheckpointError, ConfigError, TraincopeError

logger = logging.getLogger(__name__)

dcp: Any = torch.distributed.checkpoint
"""Its functions are public, but torch's types do not export them."""

Value = TypeVar("Value")


class Checkpoints:
    """The checkpoints of one trainer. All ranks create it and call its methods together, in a process group."""

    def __init__(
        self,
        trainer: Trainer,
        config: CheckpointConfig,
        *,
        directory: Path,
        claimant: Claimant | None = None,
        interruptions: int = 0,
    ) -> None:
        """`directory` is the same on all ranks. `begin` creates it.

        `claimant`: from before the process group existed. None: without a launcher, this attempt is a restart of none.
        `interruptions`: those of the training so far.
        """
        self.directory = directory
        self._claimant = claimant
        self._trainer = trainer
        self._config = config
        self._identity: Settings = identity(trainer.config, trainer.corpus)
        self._layout: Settings = layout(trainer.config)
        # A background save must not share a group with the training.
        self._group = dist.new_group(backend="gloo", group_desc="checkpoint")
        self._rank, self._ranks = dist.get_rank(self._group), dist.get_world_size(self._group)
        self._pending: Future[Any] | None = None
        self._claim: Claim | None = None
        """None before `begin`."""
        self._last: int | None = None
        """Step of the newest checkpoint."""
        self.rollbacks = 0
        """Rollbacks since the last save."""
        self.interval: Interval | None = None
        """The interval that was chosen after the last save. None: `every` holds."""
        self._cadence: Cadence | None = None
        self._trained_from = trainer.done, time.perf_counter()
        """Step and time from which the length of steps is measured."""
        if config.cadence == "auto":
            self._cadence = Cadence(mtbf_hours=config.mtbf_hours, ranks=self._ranks, interruptions=interruptions)
            self._cadence_group = dist.new_group(backend="gloo", group_desc="checkpoint cadence")

    def begin(self, *, resume: bool) -> bool:
        """Claim the folder, and bring the trainer to the newest checkpoint that is not damaged, if it continues one.

        Call it before the first step and before `save`. A training continues with `resume`, and as a restart of the
        launch that has claimed the folder. Returns whether it continues. A warning names each damaged checkpoint, which
        is renamed. Raises ConfigError if the checkpoint is of another training, UsageError if there is one and the
        training does not continue, and CheckpointError if all are damaged, if one cannot be read, if the first one
        cannot be written, if another training writes into the folder, or if a later attempt does.

        If `[stability]` may roll back and there is no checkpoint, the state before the first step is saved.
        """
        continues = self._take(resume=resume)
        with self.unless_taken_over():
            loaded = self._load_newest() if continues else None
        if loaded is None and self._trainer.config.stability.does("rollback"):
            self.save()
        return continues

    def roll_back(self) -> Path:
        """Bring the trainer back to the newest checkpoint that is not damaged, after a background save has ended.

        All batches that were consumed since then are passed over, also by later checkpoints. Returns the checkpoint.
        Raises like `begin` and `finish`.
        """
        self.finish()
        consumed = self._trainer.done + self._trainer.passed_over
        loaded = self._load_newest()
        if loaded is None:
            raise folder.none_left(self.directory, ["its checkpoints were removed"])
        self._trainer.passed_over = consumed - self._trainer.done
        self.rollbacks += 1
        return loaded

    def _take(self, *, resume: bool) -> bool:
        """Claim the folder for all ranks, as rank 0. Returns whether the training continues; raises like `begin`."""
        claimants = self._from_all(self._claimant)
        agents = {each.agent for each in claimants if each is not None and each.agent is not None}
        results: list[tuple[Claim, bool] | TraincopeError] = []
        if self._rank == 0:
            first = self._claimant or Claimant.read(self.directory, agent=None)
            try:
                continues = resume or same_launch(self.directory, agents)
                if not continues:
                    folder.check_unused(self.directory)
                results.append((take(self.directory, after=first.newest, agents=agents), continues))
            except TraincopeError as error:
                results.append(error.with_traceback(None))
        (result,) = self._from_first(results)
        if isinstance(result, TraincopeError):
            raise result
        self._claim, continues = result
        return continues

    def _load_newest(self) -> Path | None:
        """Load the newest checkpoint that is not damaged, and return it. None without checkpoints."""
        reasons: dict[Path, str] = {}
        for checkpoint in self._from_first(folder.complete_checkpoints(self.directory)):
            damage = self._damage(checkpoint)
            if isinstance(damage, Unreadable):
                raise CheckpointError(f"{damage}; make it readable, or move {checkpoint} away to continue from another")
            if damage is None:
                self._load(checkpoint)
                self._report(reasons, loaded=checkpoint)
                self._trained_from = self._trainer.done, time.perf_counter()
                return checkpoint
            reasons[checkpoint] = str(damage)
        if reasons:
            raise folder.none_left(self.directory, list(reasons.values()))
        return None

    def save_if_due(self) -> None:
        """Save after each interval and after the last step. Raises like `save`."""
        step = self._trainer.done
        if step != self._last and (self._is_due(step) or step >= self._trainer.config.train.steps):
            began = time.perf_counter()
            self.save()
            if self._cadence is not None:
                self._choose_interval(self._cadence, began=began)

    def _is_due(self, step: int) -> bool:
        if self.interval is None:
            return step % self._config.every == 0
        return step >= (self._last or 0) + self.interval.steps

    def _choose_interval(self, cadence: Cadence, *, began: float) -> None:
        """Rank 0's choice counts on all ranks."""
        chosen: list[Interval] = []
        (step, since), ended, done = self._trained_from, time.perf_counter(), self._trainer.done
        if self._rank == 0:
            times = {"training_seconds": began - since, "save_seconds": ended - began}
            chosen.append(cadence.after_save(done=done, steps=done - step, **times))
        (self.interval,) = self._from_first(chosen, group=self._cadence_group)
        self._trained_from = done, time.perf_counter()

    def save(self) -> None:
        """Save the trainer as it is now, after a background save of an earlier step has ended.

        Raises CheckpointError on all ranks if a rank cannot write. The background's errors are raised by the next call
        or by `finish`. Earlier checkpoints stay as they are.
        """
        step, passed_over = self._trainer.done, self._trainer.passed_over
        state = {**tensors_of(self._trainer), self._rank_key: rank_state(self._trainer)}
        new = folder.new_path(self._claimed.folder, step=step)

        def commit(files: Mapping[str, Sum]) -> None:
            settings = {"identity": self._identity, "layout": self._layout}
            manifest = Manifest(step=step, passed_over=passed_over, files=files, **settings)
            folder.commit(new, manifest, keep=self._config.keep)

        # A background save waits in torch's call for the one before: an observer of that call sees the stall.
        writer = Writer(new, wait=self.finish, prepare=lambda: folder.prepare(new), commit=commit)
        with self._failures():
            if self._config.asynchronous:
                saving: Any = dcp.async_save(state, storage_writer=writer, process_group=self._group)
                self._pending = saving
            else:
                dcp.save(state, storage_writer=writer, process_group=self._group)
        self._last, self.rollbacks = step, 0

    def finish(self) -> None:
        """Wait for the background save, if there is one. Raises like `save`."""
        pending, self._pending = self._pending, None
        if pending is not None:
            with self._failures():
                pending.result()

    @contextmanager
    def unless_taken_over(self) -> Iterator[None]:
        """Raise CheckpointError instead of another error if a later attempt has taken over the checkpoints.

        A rank on a host that was cut off loses the other ranks, and files that it writes, to that attempt.
        """
        try:
            yield
        except (RuntimeError, OSError) as error:
            loss = None if self._claim is None else self._claim.loss()
            if loss is None:
                raise
            raise loss from error

    @property
    def _claimed(self) -> Claim:
        assert self._claim is not None, "begin() comes before save()"
        return self._claim

    @property
    def _rank_key(self) -> str:
        return f"rank.{self._rank}"

    def _load(self, checkpoint: Path) -> None:
        manifest = read_manifest(checkpoint)
        differs = difference(manifest.identity, self._identity)
        if differs is not None:
            raise ConfigError(folder.of_another_training(checkpoint, differs))
        same_layout = difference(manifest.layout, self._layout) is None
        self._trainer.settle_buckets()
        reader = dcp.FileSystemReader(checkpoint)
        tensors = _known_scales(tensors_of(self._trainer), reader.read_metadata().state_dict_metadata)
        state: dict[str, Any] = {**tensors, **({self._rank_key: b""} if same_layout else {})}
        with self._failures():
            dcp.load(state, storage_reader=reader, process_group=self._group)
        after_loading(self._trainer)
        self._trainer.done = self._last = manifest.step
        self._trainer.passed_over = manifest.passed_over
        if same_layout:
            set_rank_state(self._trainer, state[self._rank_key])
        elif self._trainer.config.model.dropout:
            seed_generators(self._trainer.config, layout=self._trainer.layout, step=manifest.step)

    def _damage(self, checkpoint: Path) -> Damaged | None:
        """Find the damage of a checkpoint, the same on all ranks. Each rank reads a share of its files."""
        found: Damaged | None = None
        try:
            files = read_manifest(checkpoint).files
            for name in sorted(files)[self._rank :: self._ranks]:
                check_file(checkpoint, name, files[name], whole=True)
        except Damaged as damage:
            found = damage.with_traceback(None)
        return next((each for each in self._from_all(found) if each is not None), None)

    def _report(self, reasons: Mapping[Path, str], *, loaded: Path) -> None:
        """Warn of each checkpoint that is newer than the loaded one, and rename it."""
        if self._rank == 0:
            for checkpoint, reason in reasons.items():
                aside = folder.set_aside(checkpoint, self._claimed.folder)
                logger.warning("checkpoint damaged: %s; loaded %s instead, and renamed it to %s", reason, loaded, aside)

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Turn torch's collected failures into one sentence, and remove what was half written."""
        try:
            with self.unless_taken_over():
                yield
        except CheckpointException as failures:
            loss = self._claimed.loss()
            if loss is not None:
                raise loss from failures
            if self._rank == 0:
                folder.remove_left_overs(self._claimed.folder)
            rank, (error, _) = min(failures.failures.items(), key=lambda failure: failure[0])
            raise CheckpointError(
                f"the checkpoint in {self.directory} failed on rank {rank}: {type(error).__name__}: {error}; the "
                "checkpoints before it are complete, so remove the cause, for example a full disk, and resume"
            ) from error

    def _from_first(self, values: Sequence[Value], *, group: dist.ProcessGroup | None = None) -> list[Value]:
        """Rank 0's list, on all ranks."""
        received: list[Any] = [list(values)]
        dist.broadcast_object_list(received, src=0, group=group or self._group)
        result: list[Value] = received[0]
        return result

    def _from_all(self, value: Value) -> list[Value]:
        """Each rank's value, on all ranks."""
        received: list[Any] = [None] * self._ranks
        dist.all_gather_object(received, value, group=self._group)
        return received


def _known_scales(tensors: Mapping[str, Tensor], saved: Mapping[str, Any]) -> dict[str, Tensor]:
    """Leave out scales that the checkpoint does not have, of a training in another precision or with another history.

    They begin anew.
    """
    return {
        name: tensor
        for name, tensor in tensors.items()
        if not name.startswith(SCALING) or (name in saved and saved[name].size == tensor.shape)
    }
