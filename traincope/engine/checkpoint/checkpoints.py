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

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException

from traincope.engine.checkpoint.cadence import Cadence, Interval
from traincope.engine.checkpoint.identity import Settings, difference, identity, layout
from traincope.engine.checkpoint.manifest import Damaged, Manifest, Sum, Unreadable
from traincope.engine.checkpoint.places import directory as folder
from traincope.engine.checkpoint.places.claim import Claim, Claimant, same_launch, take
from traincope.engine.checkpoint.places.restoring import Restoring, find_leader
from traincope.engine.checkpoint.places.tiers import (
    Candidate,
    Torn,
    check_identity,
    check_unused,
    none_left,
    open_bucket,
)
from traincope.engine.checkpoint.places.uploads import Part, Upload, Uploads
from traincope.engine.checkpoint.rank_state import forget_errors, rank_state, set_rank_state
from traincope.engine.checkpoint.tensors import SCALING, after_loading, tensors_of
from traincope.engine.checkpoint.writer import Writer
from traincope.engine.config import CheckpointConfig
from traincope.engine.ranks.generators import seed_generators
from traincope.engine.ranks.together import Together
from traincope.engine.trainer import Trainer
from traincope.errors import CheckpointError

dcp: Any = torch.distributed.checkpoint
"""Its functions are public, but torch's types do not export them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Committed:
    """Decision of rank 0 when a checkpoint is complete. It holds on all ranks."""

    manifest: Manifest
    uploading: int | None
    """Step whose upload a rank is still sending. The new checkpoint is not uploaded then, and that one stays."""


class Checkpoints:
    """The checkpoints of one trainer. All ranks create it and call its methods together, in a process group."""

    def __init__(
        self,
        trainer: Trainer,
        config: CheckpointConfig,
        *,
        directory: Path,
        claimant: Claimant | None = None,
        on_loss: Callable[[CheckpointError], object] | None = None,
        interruptions: int = 0,
        report: Callable[[Upload], None] = lambda _: None,
    ) -> None:
        """`directory` is the same on all ranks. `begin` creates it.

        `claimant`: from before the process group existed. None: no launcher is known, so it is no restart.
        `on_loss`: ends the process when a save finds that a later attempt has taken over. torch would first report that
        to the other ranks, and wait for them, although they may be gone.
        `interruptions`: number of earlier attempts of this training. `report` is called in another thread at the end of
        each upload. Raises like `Bucket`.
        """
        self.directory = directory
        self._claimant = claimant
        self._on_loss = on_loss
        self._trainer = trainer
        self._config = config
        self._identity: Settings = identity(trainer.config, trainer.corpus)
        self._layout: Settings = layout(trainer.config)
        # A background save must not share a group with the training.
        self._ranks = Together(dist.new_group(backend="gloo", group_desc="checkpoint"))
        self._leader = 0
        """The lowest rank that shares this rank's folder. It claims, cleans and completes the folder."""
        self._one_folder = True
        self._claim: Claim | None = None
        """The leader's. None before `begin`."""
        self._bucket = open_bucket(config)
        self._uploads: Uploads | None = None
        if self._bucket is not None:
            self._uploads = Uploads(self._bucket, rank=self._ranks.rank, keep=config.keep, report=report)
        self._background = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None
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
            self._cadence = Cadence(mtbf_hours=config.mtbf_hours, ranks=self._ranks.size, interruptions=interruptions)
            self._cadence_ranks = Together(dist.new_group(backend="gloo", group_desc="checkpoint cadence"))

    def begin(self, *, resume: bool) -> bool:
        """Claim the folder, and bring the trainer to the newest whole checkpoint of both tiers, if it continues.

        Call it before the first step and before `save`. A training continues with `resume`, and as a restart of the
        launch that has claimed the folder. Such a restart with a checkpoint in its folder needs no answer from the
        bucket. Returns whether it continues. A warning names each damaged checkpoint, which is renamed. Raises
        ConfigError if the checkpoint is of another training, UsageError if there is one and the training does not
        continue, and CheckpointError if all are damaged, if one or the bucket cannot be read, if the first one cannot
        be written, if another training writes into the folder, or if a later attempt does.

        If `[stability]` may roll back and there is no checkpoint, the state before the first step is saved.
        """
        restarted = self._take(resume=resume)
        continues = resume or restarted
        with self.unless_taken_over():
            loaded = self._load_newest(restarted=restarted) if continues else None
            if loaded is None and self._trainer.config.stability.does("rollback"):
                self.save()
        self._trained_from = self._trainer.done, time.perf_counter()
        return continues

    def roll_back(self) -> Path:
        """Bring the trainer back to the newest checkpoint that is whole, after a background save has ended.

        Where hosts share no folder, each needs the others' files from the bucket. So it also waits for uploads, as
        `finish` does. All batches that were consumed since then are passed over, also by later checkpoints. Returns the
        checkpoint. Raises like `begin` and `save`.
        """
        self._finish_write()
        self._ranks.do(self._require_claim)
        if not self._one_folder:
            self._finish_uploads()
            self._ranks.all(None)
        consumed = self._trainer.done + self._trainer.passed_over
        loaded = self._load_newest(restarted=True)
        if loaded is None:
            raise none_left(self.directory, self._bucket, ["its checkpoints were removed"])
        self._trainer.passed_over = consumed - self._trainer.done
        self.rollbacks += 1
        return loaded

    def _load_newest(self, *, restarted: bool) -> Path | None:
        """Load the newest checkpoint that is whole, and return its path. None without checkpoints."""
        restoring = Restoring(self.directory, self._bucket, claim=self._claimed, ranks=self._ranks, leader=self._leader)
        reasons: list[tuple[Candidate, Damaged]] = []
        loaded = None
        for candidate in restoring.candidates(restarted=restarted):
            damage = self._load(candidate, restoring)
            if isinstance(damage, Unreadable):
                raise CheckpointError(
                    f"{damage}; make it readable, or move {candidate.place} away to continue from another"
                )
            if damage is None:
                loaded = candidate
                break
            reasons.append((candidate, damage))
        damages = [str(reason) for _, reason in reasons if not isinstance(reason, Torn)]
        if loaded is None and damages:
            raise none_left(self.directory, self._bucket, damages)
        restoring.report(reasons, loaded=loaded)
        self._trained_from = self._trainer.done, time.perf_counter()
        return None if loaded is None else folder.complete_path(self.directory, step=loaded.step)

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
        chosen = None
        (step, since), ended, done = self._trained_from, time.perf_counter(), self._trainer.done
        if self._ranks.rank == 0:
            times = {"training_seconds": began - since, "save_seconds": ended - began}
            chosen = cadence.after_save(done=done, steps=done - step, **times)
        self.interval = self._cadence_ranks.first(chosen)
        self._trained_from = done, time.perf_counter()

    def save(self) -> None:
        """Save the trainer as it is now, after a background save of an earlier step has ended.

        Raises CheckpointError on all ranks if a rank cannot write. The background's errors are raised by the next call
        or by `finish`. Earlier checkpoints stay as they are.
        """
        step, passed_over = self._trainer.done, self._trainer.passed_over
        state = {**tensors_of(self._trainer), self._rank_key: rank_state(self._trainer)}
        new = folder.new_path(self._claimed.folder, step=step)

        def prepare() -> None:
            if self._is_leader:
                folder.prepare(new)

        def commit(files: Mapping[str, Sum], uploading: bool) -> _Committed:
            settings = {"identity": self._identity, "layout": self._layout}
            manifest = Manifest(step=step, passed_over=passed_over, files=files, **settings)
            in_upload = self._uploads.step if self._uploads is not None and uploading else None
            committed = _Committed(manifest=manifest, uploading=in_upload)
            self._commit(new, committed)
            return committed

        # A background save waits in torch's call for the one before: an observer of that call sees the stall.
        writer = Writer(
            new,
            wait=self._finish_write,
            prepare=prepare,
            uploading=self._is_uploading,
            commit=commit,
            on_error=self._check_loss,
        )
        with self._failures():
            if self._config.asynchronous:
                saving: Any = dcp.async_save(state, storage_writer=writer, process_group=self._ranks.group)
                self._pending = self._background.submit(lambda: self._after_commit(saving.result(), writer))
            else:
                metadata = dcp.save(state, storage_writer=writer, process_group=self._ranks.group)
                self._after_commit(metadata, writer)
        self._last, self.rollbacks = step, 0

    def finish(self) -> None:
        """Wait for the background save, if there is one, and a bounded time for uploads. Raises like `save`."""
        self._finish_write()
        self._finish_uploads()

    def _finish_uploads(self) -> None:
        if self._uploads is not None:
            self._uploads.finish(seconds=self._config.upload_wait_seconds)

    def _finish_write(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            with self._failures():
                pending.result()

    def _commit(self, new: Path, committed: _Committed) -> None:
        folder.commit(new, committed.manifest, keep=self._config.keep, spare=committed.uploading)

    def _after_commit(self, metadata: Any, writer: Writer) -> None:
        """Complete the folders that rank 0 does not reach, and begin the upload."""
        committed: _Committed = metadata.committed
        if not self._one_folder:
            self._ranks.do(lambda: self._commit_elsewhere(Path(writer.path), committed))
        if self._uploads is None:
            return
        step = committed.manifest.step
        checkpoint = folder.complete_path(self.directory, step=step)
        part = Part(checkpoint=checkpoint, manifest=committed.manifest, names=writer.names)
        if committed.uploading is None:
            self._uploads.start(part)
        else:
            self._uploads.hold(part, during=committed.uploading)

    def _commit_elsewhere(self, new: Path, committed: _Committed) -> None:
        if self._is_leader and self._ranks.rank != 0:
            with folder.writing(self.directory):
                self._commit(new, committed)

    def _is_uploading(self) -> bool:
        return self._uploads is not None and self._uploads.sending

    @property
    def _is_leader(self) -> bool:
        return self._ranks.rank == self._leader

    @property
    def _rank_key(self) -> str:
        return f"rank.{self._ranks.rank}"

    def _load(self, candidate: Candidate, restoring: Restoring) -> Damaged | None:
        """Load a checkpoint into the trainer, or return its damage and change nothing."""
        manifest = candidate.manifest
        if manifest is None or candidate.damage is not None:
            return candidate.damage
        check_identity(candidate, self._identity)
        metadata = restoring.metadata(candidate, manifest)
        if isinstance(metadata, Damaged):
            return metadata
        same_layout = difference(manifest.layout, self._layout) is None
        tensors = _known_scales(tensors_of(self._trainer), metadata.state_dict_metadata)
        state: dict[str, Any] = {**tensors, **({self._rank_key: b""} if same_layout else {})}
        damage = restoring.obtain(candidate, manifest, needed=_files_of(state, metadata))
        if damage is not None:
            return damage
        self._trainer.settle_buckets()
        reader = dcp.FileSystemReader(folder.complete_path(self.directory, step=manifest.step))
        with self._failures():
            dcp.load(state, storage_reader=reader, process_group=self._ranks.group)
        after_loading(self._trainer)
        self._trainer.done = self._last = manifest.step
        self._trainer.passed_over = manifest.passed_over
        if same_layout:
            set_rank_state(self._trainer, state[self._rank_key])
        elif self._trainer.config.model.dropout:
            seed_generators(self._trainer.config, layout=self._trainer.layout, step=manifest.step)
        if not same_layout:
            forget_errors(self._trainer)
        return None

    def _take(self, *, resume: bool) -> bool:
        """Claim each folder, as its leader. Returns whether this attempt restarts the launch that had claimed one.

        Raises like `begin`.
        """
        agents = {each.agent for each in self._ranks.all(self._claimant) if each is not None and each.agent is not None}

        def is_restart() -> bool:
            with folder.writing(self.directory):
                return same_launch(self.directory, agents)

        restarted = any(self._ranks.all(self._ranks.do(is_restart)))
        if not (resume or restarted):
            self._ranks.do(lambda: check_unused(self.directory, self._bucket if self._ranks.rank == 0 else None))
        self._leader = find_leader(self.directory, self._ranks)
        alone = [rank for rank, leader in enumerate(self._ranks.all(self._leader)) if leader != 0]
        self._one_folder = not alone
        if alone and self._bucket is None:
            raise CheckpointError(
                f"rank {alone[0]} does not share the folder {self.directory} with rank 0; give a checkpoint.directory "
                "that all hosts share, or set checkpoint.upload"
            )

        def claim() -> Claim | None:
            if not self._is_leader:
                return None
            first = self._claimant or Claimant.read(self.directory, agent=None)
            return take(self.directory, after=first.newest, agents=agents)

        self._claim = self._ranks.all(self._ranks.do(claim))[self._leader]
        return restarted

    @contextmanager
    def unless_taken_over(self) -> Iterator[None]:
        """Raise CheckpointError instead of another error if a later attempt has taken over the checkpoints.

        A rank on a host that was cut off loses the other ranks, and files that it writes, to that attempt.
        """
        try:
            yield
        except (RuntimeError, OSError, CheckpointError) as error:
            loss = None if self._claim is None else self._claim.loss()
            if loss is None:
                raise
            raise loss from error

    def _require_claim(self) -> None:
        loss = self._claimed.loss()
        if loss is not None:
            raise loss

    def _check_loss(self) -> None:
        loss = self._claimed.loss()
        if loss is not None and self._on_loss is not None:
            self._on_loss(loss)

    @property
    def _claimed(self) -> Claim:
        assert self._claim is not None, "begin() comes before save()"
        return self._claim

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
            if self._is_leader:
                with suppress(OSError):
                    folder.remove_left_overs(self._claimed.folder)
            rank, (error, _) = min(failures.failures.items(), key=lambda failure: failure[0])
            raise CheckpointError(
                f"the checkpoint in {self.directory} failed on rank {rank}: {type(error).__name__}: {error}; the "
                "checkpoints before it are complete, so remove the cause, for example a full disk, and resume"
            ) from error


def _files_of(state: dict[str, Any], metadata: Any) -> set[str]:
    """Names of the files that hold a part of the state."""
    planner = dcp.DefaultLoadPlanner()
    planner.set_up_planner(state, metadata, is_coordinator=False)
    items = planner.create_local_plan().items
    return {metadata.storage_data[item.storage_index].relative_path for item in items}


def _known_scales(tensors: Mapping[str, Tensor], saved: Mapping[str, Any]) -> dict[str, Tensor]:
    """Leave out scales that the checkpoint does not have, of a training in another precision or with another history.

    They begin anew.
    """
    return {
        name: tensor
        for name, tensor in tensors.items()
        if not name.startswith(SCALING) or (name in saved and saved[name].size == tensor.shape)
    }
