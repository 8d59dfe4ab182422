"""The anchor: the optimizer whose step ends a training step, for trainings with several optimizers."""

from weakref import ref

DECISIVE_STEPS = 2
"""Number of steps that decide: this many to recognise a companion, and this many without the anchor to replace it."""


class StepAnchor:
    """The anchor of a training: the first optimizer that steps, until another replaces it.

    An optimizer that begins later replaces the anchor at once if the anchor is gone, as usual after its training has
    ended. Otherwise it replaces the anchor after steps of its own during which the anchor took none. A critic that
    steps more often, but did so from the beginning, replaces nothing. No optimizer is kept alive by this.
    """

    __slots__ = ("_companions", "_newcomer", "_newcomer_steps", "_owner", "_steps")

    def __init__(self) -> None:
        self._owner: ref[object] | None = None
        self._steps = 0
        self._companions: dict[int, ref[object]] = {}
        """Optimizers that stepped before the anchor's second step, by identity: an optimizer need not be hashable."""
        self._newcomer: ref[object] | None = None
        self._newcomer_steps = 0
        """Steps of the newcomer since the anchor's last step."""

    def ends_step(self, owner: object) -> bool:
        """Note that `owner` has stepped. Returns whether this ends the training step."""
        anchor = None if self._owner is None else self._owner()
        if owner is anchor:
            self._steps += 1
            self._newcomer = None
            return True
        if anchor is None or self._replaced_by(owner):
            self._owner, self._newcomer, self._steps = ref(owner), None, 1
            self._companions.clear()
            return True
        return False

    def _replaced_by(self, owner: object) -> bool:
        if self._steps < DECISIVE_STEPS:
            self._companions[id(owner)] = ref(owner)
        companion = self._companions.get(id(owner))
        if companion is not None and companion() is owner:
            return False
        if self._newcomer is None:
            self._newcomer, self._newcomer_steps = ref(owner), 0
        self._newcomer_steps += self._newcomer() is owner
        return self._newcomer_steps >= DECISIVE_STEPS
