"""`[data]`: what is trained on."""

from dataclasses import dataclass
from typing import Literal

from traincope.engine.checks import require


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """`[data]`: the text."""

    path: str | None = None
    """A file or folder of text, or a token file `.bin` (`token_type`); None: this Python's own library."""
    token_type: Literal["uint8", "uint16"] = "uint16"
    """Type of the numbers in a token file."""
    end_of_document: int | None = None
    """Token that ends a document, 256 after each file of text: attention stays within documents, and positions begin
    anew with each. None: attention sees whole sequences."""
    held_out: float = 0.05
    """Share of the tokens, from the end of the text, that is never trained on."""
    workers: int = 0
    """Processes that prepare batches in the background; 0: the training process does."""

    def __post_init__(self) -> None:
        if self.end_of_document is not None:
            require(
                self.end_of_document >= 0,
                f"data.end_of_document = {self.end_of_document} is no token; give one, or leave it out",
            )
        require(
            0.0 < self.held_out < 1.0,
            f"data.held_out = {self.held_out} is no share; give one between 0 and 1",
        )
        require(self.workers >= 0, f"data.workers = {self.workers} is negative; 0 means no background processes")
