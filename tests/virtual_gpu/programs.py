"""Small programs, one for each way in which a step spends its time.

Unless a program says otherwise, a runtime call takes 1 us and its work starts 3 us after the call began.
"""

from dataclasses import replace

from tests.virtual_gpu.actions import (
    US,
    Action,
    Clock,
    Group,
    Meaning,
    Program,
    Range,
    Synchronize,
    after,
    annotated,
    backward,
    collective,
    copy,
    evaluate,
    fill,
    forward,
    graph,
    item,
    kernel,
    next_batch,
    operator,
    optimizer,
    recompute,
    same,
    sleep,
    step,
)

WORLD = Group(name="0", ranks=(0, 1))
PIPELINE = Group(name="7", ranks=(0, 1), description="pp")


def single(*actions: Action, wake_us: int = 0, gap_us: int = 0) -> Program:
    return Program(ranks=(actions,), wake_ns=wake_us * US, gap_ns=gap_us * US)


def two_steps(*body: Action) -> Program:
    return single(step(1, *body), step(2, *body))


def slow_launches() -> tuple[Action, ...]:
    """Kernels of 5 us, and 20 us of host work after each."""
    return tuple(operator(kernel(5), sleep(20), sequence=number) for number in (1, 2))


def gradients_once(*, backward_us: int = 30, wire_us: int = 20, more_us: int = 0) -> tuple[Action, ...]:
    """A step of DDP: the all-reduce runs on its own stream, and the optimizer waits for it.

    `more_us`: backward work after the all-reduce, which hides it.
    """
    more = (evaluate("MmBackward0", kernel(more_us)),) if more_us else ()
    return (
        forward(kernel(20)),
        backward(
            evaluate("AddmmBackward0", kernel(backward_us)),
            *after("gradients", stream=7, on=40),
            collective(WORLD, wire_us),
            *more,
        ),
        *after("reduced", stream=40, on=7),
        optimizer(kernel(10)),
    )


def accumulation() -> Action:
    """Two microbatches; only the second one's backward reduces."""
    first = (forward(kernel(20)), backward(evaluate("AddmmBackward0", kernel(30))))
    return step(1, *first, *gradients_once())


def optimizer_beside() -> Program:
    """The optimizer has its own stream; the next forward waits for it."""
    work = (
        forward(kernel(50)),
        backward(evaluate("AddmmBackward0", kernel(60))),
        *after("gradients", stream=7, on=20),
        optimizer(kernel(30, stream=20)),
    )
    return single(step(1, *work), step(2, *after("updated", stream=20, on=7), *work))


def evaluation(*body: Action) -> Action:
    return annotated("evaluation", Meaning.EVALUATION, *body)


def send_activations() -> tuple[Action, ...]:
    return (*after("sent", stream=7, on=40), collective(PIPELINE, 2, operation="send"))


def receive() -> tuple[Action, ...]:
    return (collective(PIPELINE, 2, operation="recv"), *after("received", stream=40, on=7))


def exchange() -> tuple[Action, ...]:
    """Send and receive in one kernel, as batched P2P does."""
    return (*send_activations(), *after("received", stream=40, on=7))


def F() -> Action:  # noqa: N802
    return forward(kernel(10), name="## forward ##")


def back(us: int) -> Action:
    return backward(evaluate("MmBackward0", kernel(us)))


def one_forward_one_backward() -> Program:
    """2 stages, 2 microbatches, F = 10 us, B = 20 us, 2 us on the wire."""
    first = (F(), *send_activations(), F(), *exchange(), back(20), *receive(), back(20))
    last = (*receive(), F(), back(20), *exchange(), F(), back(20), *send_activations())
    return Program(ranks=((step(1, *first),), (step(1, *last),)))


def zero_bubble() -> Program:
    """The same, with backward as I = 10 us and W = 10 us. W runs while its stage would wait."""
    first = (F(), *send_activations(), F(), *exchange(), back(10), back(10), *receive(), back(10), back(10))
    last = (
        *receive(), F(), back(10), *send_activations(), back(10), *after("received", stream=40, on=7),
        F(), back(10), *send_activations(), back(10),
    )  # fmt: skip
    return Program(ranks=((step(1, *first),), (step(1, *last),)))


def two_axes() -> Program:
    """Tensor parallelism on neighbours, data parallelism across them."""
    tensor = [Group(name=f"tp{pair}", ranks=pair, description="tp") for pair in ((0, 1), (2, 3))]
    data = [Group(name=f"dp{pair}", ranks=pair, description="dp") for pair in ((0, 2), (1, 3))]

    def rank(number: int) -> tuple[Action, ...]:
        reduced = (
            forward(kernel(10), *after("partial", stream=7, on=41), collective(tensor[number // 2], 5, stream=41)),
            *after("whole", stream=41, on=7),
            backward(evaluate("MmBackward0", kernel(10)), *after("gradients", stream=7, on=40)),
            collective(data[number % 2], 7),
            *after("reduced", stream=40, on=7),
            optimizer(kernel(5)),
        )
        return (step(1, *reduced),)

    return Program(ranks=tuple(map(rank, range(4))))


LATE_PEER = Program(ranks=((step(1, *gradients_once()),), (step(1, *gradients_once(backward_us=70)),)))
COLLECTOR = Range(name="<built-in function collect>", category="python_function", body=(sleep(50),), meaning=Meaning.GC)
COMPILER = Range(
    name="torch/_dynamo/convert_frame.py(1154): _compile",
    category="python_function",
    body=(sleep(60),),
    meaning=Meaning.COMPILE,
)

PROGRAMS = {
    "host bound": two_steps(*slow_launches()),
    "device bound": two_steps(forward(kernel(50), kernel(50))),
    "hidden loader": two_steps(next_batch(sleep(30)), forward(kernel(100))),
    "exposed loader": two_steps(next_batch(sleep(30)), forward(kernel(20))),
    "hidden collective": Program(ranks=same(2, [step(1, *gradients_once(more_us=40))])),
    "exposed collective": Program(ranks=same(2, [step(1, *gradients_once())])),
    "late peer": LATE_PEER,
    "late peer without a trace": replace(LATE_PEER, untraced=frozenset({1})),
    "two hosts with drift": replace(LATE_PEER, clocks=(Clock(), Clock(offset_ns=5_000_000_000, drift_ppb=1_000_000))),
    "slow link": Program(ranks=same(2, [step(1, *gradients_once(wire_us=200))])),
    "two axes": two_axes(),
    "recomputation": single(
        step(
            1,
            forward(kernel(20)),
            backward(evaluate("CheckpointFunctionBackward", recompute(kernel(15)), kernel(30))),
        )
    ),
    "optimizer on its own stream": optimizer_beside(),
    "offload": single(
        step(
            1,
            forward(
                kernel(30),
                *after("activations", stream=7, on=25),
                copy(40, 25, "DtoH (Device -> Pinned)"),
                kernel(10),
                *after("offloaded", stream=25, on=7),
                kernel(20),
            ),
        )
    ),
    "graph replay": single(step(1, forward(graph(20, 30, 10), graph(20, 30, 10))), gap_us=1),
    "two compute streams": single(
        step(1, forward(kernel(50)), backward(evaluate("MmBackward0", kernel(30, stream=20))))
    ),
    "gradient accumulation": Program(ranks=same(2, [accumulation()])),
    "1F1B": one_forward_one_backward(),
    "zero bubble": zero_bubble(),
    "garbage collection": single(
        step(1, forward(kernel(20)), annotated("gc", Meaning.GC, sleep(50)), forward(kernel(20))),
        step(2, forward(kernel(20)), COLLECTOR, forward(kernel(20))),
    ),
    "compilation": single(step(1, COMPILER, forward(kernel(20)))),
    "item": single(step(1, forward(kernel(50)), item(2), sleep(10), forward(kernel(20))), wake_us=4),
    "device synchronization": single(step(1, forward(kernel(50)), Synchronize(), forward(kernel(20))), wake_us=4),
    "checkpoint": single(
        step(
            1,
            forward(kernel(20)),
            annotated(
                "checkpoint",
                Meaning.CHECKPOINT_STALL,
                copy(30, 7, "DtoH (Device -> Pageable)", blocking=True),
                sleep(100),
            ),
            forward(kernel(20)),
        )
    ),
    "evaluation": single(
        step(
            1,
            forward(kernel(20)),
            evaluation(operator(kernel(30)), sleep(80)),
            forward(kernel(20)),
        )
    ),
    "evaluation of a wrapped model": single(
        step(1, forward(kernel(20)), evaluation(forward(kernel(30))), forward(kernel(20)))
    ),
    "evaluation after unknown kernels": single(step(1, operator(kernel(10)), evaluation(operator(kernel(10))))),
    "latency of an evaluation": single(step(1, evaluation(operator(kernel(10))))),
    "zero_grad": single(
        step(1, fill(5), annotated("Optimizer.zero_grad#AdamW.zero_grad", Meaning.OPTIMIZER, kernel(10)))
    ),
    "unknown phase": single(step(1, annotated("my kernels", None, operator(kernel(10))))),
}
