"""Which of several optimizers ends a step, where a training has more than one, or one after the other."""

from weakref import ref

ENOUGH = 2
"""So many steps tell who steps along with it, and so many without it tell that a newcomer has taken its place."""


class Anchor:
    """The first that steps. One that begins later takes its place: at once where it is gone, as an optimizer whose
    training is over mostly is, else after steps of its own in which the anchor took none. A critic that steps more
    often, but did so from the beginning, takes nobody's place. Nothing is kept alive for it.
    """

    __slots__ = ("_alone", "_companions", "_newcomer", "_owner", "_steps")

    def __init__(self) -> None:
        self._owner: ref[object] | None = None
        self._steps = 0
        self._companions: dict[int, ref[object]] = {}
        """Others that stepped before the anchor did so again, by identity: an optimizer need not be hashable."""
        self._newcomer: ref[object] | None = None
        self._alone = 0
        """Steps of the newcomer since the anchor's last."""

    def takes(self, owner: object) -> bool:
        """`owner` has stepped; returns whether the step ends with that."""
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
        if self._steps < ENOUGH:
            self._companions[id(owner)] = ref(owner)
        companion = self._companions.get(id(owner))
        if companion is not None and companion() is owner:
            return False
        if self._newcomer is None:
            self._newcomer, self._alone = ref(owner), 0
        self._alone += self._newcomer() is owner
        return self._alone >= ENOUGH
