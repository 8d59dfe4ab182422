"""An object that a framework takes for another one."""

from typing import Any


class StandIn:
    """Has the attributes in its slots. All others are those of the object it stands for, also when they are set."""

    __slots__ = ("_original",)

    def __init__(self, original: Any) -> None:
        self._original = original

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in StandIn.__slots__ or name in self.__slots__:
            super().__setattr__(name, value)
        else:
            setattr(self._original, name, value)
