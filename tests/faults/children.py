"""What a child of a training does; without torch, which a spawned one would have to import."""

from typing import Any

import traincope


def in_a_child(connection: Any) -> None:
    with traincope.span("in a child"):
        traincope.step()
    connection.send("done")
