"""Truth about the programs of this folder. Sizes are those at the top of each program.

A Linear of i inputs and o outputs takes 2 B i o FLOPs on a batch of B, in forward, for its weight's gradient, and for
its input's gradient. The first Linear needs no gradient of its input.
"""

from collections.abc import Sequence

from evaluation.frameworks.truth import FLOAT, Case, Traffic, Truth


def linear_flops(batch: int, sizes: Sequence[tuple[int, int]], *, input_grad: bool = False) -> int:
    """FLOPs of a forward and a backward through Linears of these (inputs, outputs)."""
    products = [inputs * outputs for inputs, outputs in sizes]
    return 2 * batch * (3 * sum(products) - (0 if input_grad else products[0]))


# -- plain.py: matrices of 32 x 64 and 64 x 16; each gradient is reduced once -------------------------

PLAIN: Traffic = {("world", "all_reduce"): (2, (32 * 64 + 64 * 16) * FLOAT)}
PLAIN_FLOPS = 2 * linear_flops(8, [(32, 64), (64, 16)])

# -- ddp.py, compiled.py: the same sizes with biases, in one bucket -----------------------------------

WEIGHTS = (32 * 64 + 64) + (64 * 16 + 16)
BUCKET: Traffic = {("dp", "all_reduce"): (1, WEIGHTS * FLOAT)}
ORDER: Traffic = {("dp", "broadcast"): (2, (4 + 1 + 1) * FLOAT)}
"""Rank 0 sends the order of the buckets once, when it is known: 4 parameters, the number of buckets, each bucket's
size."""

# ddp.py sums its evaluation's loss after the evaluation's last forward: the report counts that in the step. So it does
# with the first evaluation. The second is after the last step.

# -- sharded.py: two blocks of (32, 128) and (128, 32) with biases, and a head of (32, 16) -------------

BLOCK, HEAD = 2 * 32 * 128 + 128 + 32, 32 * 16 + 16
SHARDED: Traffic = {
    ("fsdp", "all_gather"): (2 * 2 + 1, (2 * 2 * BLOCK + HEAD) * FLOAT),
    ("fsdp", "reduce_scatter"): (2 + 1, (2 * BLOCK + HEAD) * FLOAT),
    ("fsdp", "all_reduce"): (1, FLOAT),
}
"""Blocks are gathered for forward and again for backward, the root keeps its head. The wrapper of torch 1 clips by one
number."""
SHARDED_2: Traffic = {**SHARDED, ("fsdp", "all_reduce"): (1, (2 * 4 + 2) * FLOAT)}
"""`clip_grad_norm_` reduces the norms of all parameters at once."""
SHARDED_FLOPS = 2 * linear_flops(8, [(32, 128), (128, 32), (32, 128), (128, 32), (32, 16)])

# -- tensor_parallel.py: two blocks of (32, 128) and (128, 32), without biases -------------------------

STREAM = 8 * 32 * FLOAT
SPLIT: Traffic = {("tp", "all_reduce"): (2 + 1, (2 + 1) * STREAM)}
"""One reduction per block in forward, and one in backward for every block except the first."""
SPLIT_FLOPS = linear_flops(8, [(32, 128), (128, 32)] * 2)
PART = 2 * 32 * 128 // 2
"""Weights of a block on one rank of tp."""

# -- pipelined.py: a microbatch has 4 rows of 32 numbers -----------------------------------------------

MESSAGES = (4, 4 * (4 * 32 * FLOAT))
PIPELINED_FLOPS = linear_flops(16, [(32, 128), (128, 32)] * 2)

# -- small_gpt.py: 2 layers of 32, 16 tokens of 64, without biases; the output shares the embedding --------

GPT_WEIGHTS = 64 * 32 + 16 * 32 + 2 * (12 * 32**2 + 2 * 32) + 32
GPT_PARAMETERS = 2 + 2 * 6 + 1
GPT_FLOPS = 3 * 4 * 16 * (2 * (2 * 12 * 32**2 + 64 * 32) + 2 * 4 * 16 * 32)
"""Of a microbatch: matrices, the output, attention in full (not halved)."""

CASES = (
    Case(
        name="plain script",
        program="programs/plain.py",
        truth=Truth(steps=24, optimizer="SGD", traffic=PLAIN, flops=PLAIN_FLOPS),
    ),
    Case(
        name="plain script without an optimizer",
        program="programs/plain.py",
        arguments=("--by-hand",),
        truth=Truth(steps=24, optimizer="", traffic=PLAIN, flops=PLAIN_FLOPS),
    ),
    Case(
        name="DDP, accumulation",
        program="programs/ddp.py",
        truth=Truth(
            steps=12,
            optimizer="AdamW",
            traffic=BUCKET,
            once={**ORDER, ("dp", "all_reduce"): (1, FLOAT)},
            flops=2 * 2 * linear_flops(8, [(32, 64), (64, 16)]),
            evaluated_after=(6, 12),
            saved_after=(6, 12),
        ),
    ),
    Case(
        name="FSDP1",
        program="programs/sharded.py",
        arguments=("fsdp1",),
        truth=Truth(steps=12, optimizer="Adam", traffic=SHARDED, flops=SHARDED_FLOPS),
    ),
    Case(
        name="FSDP2",
        program="programs/sharded.py",
        arguments=("fsdp2",),
        truth=Truth(steps=12, optimizer="Adam", traffic=SHARDED_2, flops=SHARDED_FLOPS, saved_after=(1,)),
    ),
    Case(
        name="tensor parallelism, unnamed mesh",
        program="programs/tensor_parallel.py",
        truth=Truth(steps=12, optimizer="SGD", traffic=SPLIT, flops=SPLIT_FLOPS),
    ),
    Case(
        name="FSDP2 x tensor parallelism",
        program="programs/tensor_parallel.py",
        ranks=4,
        truth=Truth(
            steps=12,
            optimizer="SGD",
            mesh={"dp": 2, "tp": 2},
            traffic={
                **SPLIT,
                ("dp", "all_gather"): (2 * 2, 2 * 2 * PART * FLOAT),
                ("dp", "reduce_scatter"): (2, 2 * PART * FLOAT),
            },
            flops=2 * SPLIT_FLOPS,
        ),
    ),
    Case(
        name="pipeline, 1F1B",
        program="programs/pipelined.py",
        truth=Truth(
            steps=12,
            optimizer="AdamW",
            traffic={("pp", "send"): MESSAGES, ("pp", "recv"): MESSAGES},
            flops=PIPELINED_FLOPS,
        ),
    ),
    Case(
        name="torch.compile under DDP",
        program="programs/compiled.py",
        truth=Truth(
            steps=12, optimizer="AdamW", traffic=BUCKET, once=ORDER, flops=PLAIN_FLOPS, evaluated_after=(0, 6, 12)
        ),
    ),
    Case(
        name="GPT in one script",
        program="programs/small_gpt.py",
        truth=Truth(
            steps=12,
            optimizer="AdamW",
            traffic={("dp", "all_reduce"): (1, GPT_WEIGHTS * FLOAT)},
            once={("dp", "broadcast"): (2, (GPT_PARAMETERS + 1 + 1) * FLOAT)},
            flops=2 * 2 * GPT_FLOPS,
            evaluated_after=(0, 6),
            saved_after=(6,),
        ),
    ),
)
