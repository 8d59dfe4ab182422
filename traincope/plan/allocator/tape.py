"""A tape of operators whose bytes are followed through forward and backward, as torch's autograd frees them.

A storage lives as long as something holds it: a variable of the model's code, a node that saved it for its backward, or
the gradient that waits for a node. A node runs its backward when the gradient of its output is complete. It creates the
gradients of its inputs, and only then its saved tensors and the gradient that it received are freed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass(eq=False, slots=True)
class Storage:
    """Bytes of one tensor, and of all its views."""

    num_bytes: int
    holders: int = 0


@dataclass(eq=False, slots=True, kw_only=True)
class Node:
    """Backward of an operator."""

    edges: "tuple[Node | None, ...]" = ()
    """Nodes of the inputs; None for an input without gradient."""
    gradients: tuple[int | None, ...] = ()
    """Bytes of the gradient of each input; None: the gradient of the output, or a view of it."""
    saved: tuple[Storage, ...] = ()
    temporary: int = 0
    """Further bytes during backward, for example of a gradient that is broadcast before it is summed."""
    weights: tuple[int, ...] = ()
    """Bytes of the gradients of parameters."""
    unit: str = ""
    """Unit of these parameters."""
    gradient: Storage | None = None
    """Gradient of the output, as far as it has arrived."""


@dataclass(frozen=True, slots=True)
class Recomputation:
    """Operators that run again in backward, and then their own backward."""

    run: "Callable[[Callable[[str, Storage], None]], None]"


@dataclass(frozen=True, eq=False, slots=True)
class Value:
    """A tensor in a graph: its storage, and the node that its gradient goes to."""

    storage: Storage
    node: Node | None = None

    @property
    def num_bytes(self) -> int:
        return self.storage.num_bytes


@dataclass(slots=True)
class Tape:
    """Bytes now and at most, and the nodes in the order of forward."""

    now: int = 0
    peak: int = 0
    nodes: list[Node | Recomputation | Callable[[], None]] = field(default_factory=list)
    """A function stands for a moment: backward calls it there."""
    unit: str = ""
    """Unit whose operators run now."""
    again: bool = False
    """Operators run again in backward."""
    enter: "Callable[[str], Callable[[], None]]" = lambda _: lambda: None
    """Begins a unit; the result ends it."""

    def take(self, num_bytes: int) -> Storage:
        """Allocate. The caller holds the storage."""
        self.now += num_bytes
        self.peak = max(self.peak, self.now)
        return Storage(num_bytes, holders=1)

    def hold(self, storage: Storage) -> None:
        storage.holders += 1

    def drop(self, *held: Storage | Value) -> None:
        """Let go of each; the last holder frees."""
        for each in held:
            storage = each.storage if isinstance(each, Value) else each
            assert storage.holders > 0
            storage.holders -= 1
            if not storage.holders:
                self.now -= storage.num_bytes

    def touch(self, num_bytes: int) -> None:
        """Allocate, and free at once."""
        self.peak = max(self.peak, self.now + num_bytes)

    def leaf(self, num_bytes: int) -> Value:
        """Tensor without a graph."""
        return Value(self.take(num_bytes))

    def run(
        self,
        *inputs: Value,
        out: int,
        gradients: Sequence[int | None],
        saved: Sequence[Value] = (),
        saves_output: bool = False,
        forward: int = 0,
        backward: int = 0,
        weights: Sequence[int] = (),
    ) -> Value:
        """Run an operator with a result of `out` bytes, which the caller holds.

        `forward` and `backward`: temporary bytes, next to results.
        """
        storage = self.take(out)
        self.touch(forward)
        return self._record(inputs, storage, gradients, saved, saves_output, backward, weights)

    def view(self, *inputs: Value) -> Value:
        """Result that shares the first input's storage, for example after an in-place change. The caller holds it."""
        self.hold(inputs[0].storage)
        return self._record(inputs, inputs[0].storage, (None,) * len(inputs), (), False, 0, ())

    def _record(
        self,
        inputs: Sequence[Value],
        storage: Storage,
        gradients: Sequence[int | None],
        saved: Sequence[Value],
        saves_output: bool,
        backward: int,
        weights: Sequence[int],
    ) -> Value:
        kept = (*(each.storage for each in saved), *((storage,) if saves_output else ()))
        for each in kept:
            self.hold(each)
        node = Node(
            edges=tuple(each.node for each in inputs),
            gradients=tuple(gradients),
            saved=kept,
            temporary=backward,
            weights=tuple(weights),
            unit=self.unit,
        )
        self.nodes.append(node)
        return Value(storage, node)

    def detach(self) -> list[Node | Recomputation | Callable[[], None]]:
        """Take the nodes so far off the tape."""
        nodes, self.nodes = self.nodes, []
        return nodes

    def record(self, entry: Recomputation | Callable[[], None]) -> None:
        self.nodes.append(entry)

    def restore(self, nodes: "list[Node | Recomputation | Callable[[], None]]") -> None:
        """Put nodes back that `detach` took."""
        self.nodes = nodes

    def forget(self, nodes: Sequence[Node | Recomputation | Callable[[], None]]) -> None:
        """Free what nodes have saved, without backward."""
        for node in nodes:
            if isinstance(node, Node):
                self.drop(*node.saved)

    def backward(
        self, nodes: Sequence[Node | Recomputation | Callable[[], None]], *, receive: Callable[[str, Storage], None]
    ) -> None:
        """Run nodes backward, from the last. `receive` takes over each parameter's gradient, with its unit."""
        for node in reversed(nodes):
            if isinstance(node, Recomputation):
                node.run(receive)
            elif not isinstance(node, Node):
                node()
            elif node.gradient is None:
                self.drop(*node.saved)
            else:
                self._run_backward(node, node.gradient, receive)

    def _run_backward(self, node: Node, arrived: Storage, receive: Callable[[str, Storage], None]) -> None:
        passed = [self._gradient(arrived, size) for size in node.gradients]
        made = [self.take(size) for size in node.weights]
        self.touch(node.temporary)
        self.drop(*node.saved)
        node.gradient = None
        self.drop(arrived)
        for edge, gradient in zip(node.edges, passed, strict=True):
            self.send(edge, gradient)
        for gradient in made:
            receive(node.unit, gradient)

    def _gradient(self, arrived: Storage, size: int | None) -> Storage:
        if size is None:
            self.hold(arrived)
            return arrived
        return self.take(size)

    def send(self, node: Node | None, gradient: Storage) -> None:
        """Give a node a gradient, which the caller held.

        A second one is added to the first in place if nothing else holds that.
        """
        if node is None:
            self.drop(gradient)
        elif node.gradient is None:
            node.gradient = gradient
        else:
            if node.gradient.holders > 1:
                summed = self.take(gradient.num_bytes)
                self.drop(node.gradient)
                node.gradient = summed
            self.drop(gradient)
