"""The table `[data]`: the training text."""

from dataclasses import dataclass
from typing import Literal

from traincope.engine.config.checks import require


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """The training text and how it is read."""

    path: str | None = None
    """File or folder of text, or a token file `.bin` (see `token_type`). None: the library of this Python."""
    token_type: Literal["uint8", "uint16"] = "uint16"
    """Type of the numbers in a token file."""
    end_of_document: int | None = None
    """Token that ends a document; each file of text ends with 256. Attention stays within documents, and positions
    restart in each. None: attention covers whole sequences."""
    held_out: float = 0.05
    """Share of the tokens, from the end of the text, that training never uses."""
    workers: int = 0
    """Processes that prepare batches in the background. 0: the training process prepares them."""

    def __post_init__(self) -> None:
        if self.end_of_document is not None:
            require(
                self.end_of_document >= 0,
                f"data.end_of_document = {self.end_of_document} is negative; use a token number, or leave it out",
            )
        require(
            0.0 < self.held_out < 1.0,
            f"data.held_out = {self.held_out} is not a share; use a number between 0 and 1",
        )
        require(self.workers >= 0, f"data.workers = {self.workers} is negative; 0 means no background processes")
