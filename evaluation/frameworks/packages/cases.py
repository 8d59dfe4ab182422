"""Truth about the programs of this folder. Sizes are those at the top of each program."""

from evaluation.frameworks.programs.cases import BUCKET, ORDER, linear_flops
from evaluation.frameworks.truth import FLOAT, Case, Traffic, Truth

MLP_FLOPS = 2 * 2 * linear_flops(8, [(32, 64), (64, 16)])
"""Two ranks, two microbatches."""

# -- lightning_ddp.py: the model of ddp.py ---------------------------------------------------------------

LIGHTNING: Traffic = {**BUCKET, ("dp", "broadcast"): (2, 2 * 8)}
"""After each of two batches, rank 0 sends one number: whether it has received SIGTERM."""
LIGHTNING_ONCE: Traffic = {
    ("dp", "broadcast"): (2 - 1, (4 + 1 + 1) * FLOAT - 8),
    ("dp", "barrier"): (2 * 2, 0),
    ("dp", "all_reduce"): (2, 2 * 8),
}
"""The order of DDP's buckets; the number of the very last batch comes after the last step. Of two saves: a barrier
before and after, and one number on which the ranks agree."""

# -- hugging_face.py: GPT-2 with 2 layers of 32, 16 tokens of 64 ---------------------------------------

LAYERS, HIDDEN, TOKENS, VOCABULARY = 2, 32, 16, 64
LAYER_WEIGHTS = 12 * HIDDEN**2 + (3 + 1 + 4 + 1) * HIDDEN + 2 * 2 * HIDDEN
"""Matrices, their biases, and two norms."""
GPT2_WEIGHTS = LAYERS * LAYER_WEIGHTS + (VOCABULARY + TOKENS + 2) * HIDDEN
"""The output shares the embedding of the vocabulary. The last norm has 2 x 32."""
GPT2_PARAMETERS = LAYERS * 12 + 2 + 2
GPT2_FLOPS_PER_TOKEN = 3 * (2 * (LAYERS * 12 * HIDDEN**2 + VOCABULARY * HIDDEN) + LAYERS * 4 * TOKENS * HIDDEN)
"""Forward and twice as much in backward: matrices, the output, attention in full (not halved)."""

AROUND_EVALUATION = (3, 2 * 8 + 2 * 4 * FLOAT + 2 * FLOAT)
"""Collectives around the forwards of the first evaluation: the number of labels of its first batch, the losses of its
last one, and the mean loss of the training. The report counts them in the step."""

# -- deepspeed_zero.py: Linears of (32, 128) and (128, 32) with biases ----------------------------------

ZERO_WEIGHTS = 2 * 32 * 128 + 128 + 32
ZERO_FLOPS = 2 * 2 * linear_flops(8, [(32, 128), (128, 32)])
ZERO_1: Traffic = {
    ("dp", "all_reduce"): (1 + 1, ZERO_WEIGHTS * FLOAT + FLOAT),
    ("dp", "all_gather"): (1, ZERO_WEIGHTS * FLOAT),
}
"""One bucket of gradients and the norm; then each rank sends the weights that it has updated."""
ZERO_2: Traffic = {
    ("dp", "all_reduce"): (2 + 1, (2 * ZERO_WEIGHTS + 1) * FLOAT),
    ("dp", "all_gather"): (1, ZERO_WEIGHTS * FLOAT),
}
"""The gradients of each microbatch, because a rank keeps only its part of them."""
ZERO_3: Traffic = {
    ("dp", "all_gather"): (2 * 2 * 2, 2 * 2 * ZERO_WEIGHTS * FLOAT),
    ("dp", "reduce_scatter"): (2, 2 * ZERO_WEIGHTS * FLOAT),
    ("dp", "all_reduce"): (1, 8),
}
"""Per microbatch, each Linear is gathered for forward and again for backward, and one bucket of gradients is reduced.
The norm is one number of double precision. ZeRO-3 uses the world's own group, and so do the saves."""
ZERO_SAVES = {"barrier": (2 * 2, 0), "all_reduce": (2 * 2, 2 * 2 * 20)}
"""Two saves: barriers before and after, and the least and greatest SHA-1 (20 bytes) of the tag over the ranks."""

# -- megatron_gpt.py: 2 layers of 32, 16 tokens of 64, on two ranks of tp --------------------------------

MEGATRON_STREAM = 4 * TOKENS * HIDDEN * FLOAT
MEGATRON: Traffic = {
    ("tp", "all_reduce"): (
        2 * (2 + 4 * LAYERS + 3),
        2 * ((2 + 4 * LAYERS) * MEGATRON_STREAM + 3 * 4 * TOKENS * FLOAT),
    )
}
"""Per microbatch: the embedding of the split vocabulary, and the gradient of the output's input. Per layer: attention
and feed-forward, in forward and in backward. The loss needs three numbers per token: the greatest logit, the logit of
the label, and the sum of the exponentials."""

# -- torchtitan_llama.py: 2 layers of 64 with a gated feed-forward of 192, 4 texts of 16 tokens of 128 -----

TITAN, TITAN_TOKENS, TITAN_VOCABULARY = 64, 4 * 16, 128
TITAN_LAYER = 4 * TITAN**2 + 3 * TITAN * 192 + 2 * TITAN
"""Matrices and two norms."""
TITAN_EMBEDDING = TITAN_VOCABULARY * TITAN
TITAN_HEAD = TITAN + TITAN_EMBEDDING
TITAN_PARAMETERS = 1 + 2 * (7 + 2) + 2
TITAN_FLOPS = 3 * TITAN_TOKENS * (2 * (2 * (TITAN_LAYER - 2 * TITAN) + TITAN_EMBEDDING) + 2 * 4 * 16 * TITAN)
"""Of one replica: matrices, the output, attention in full (not halved)."""
TITAN_FSDP: Traffic = {
    ("fsdp", "all_gather"): (4 + 3, (2 * (TITAN_EMBEDDING + 2 * TITAN_LAYER) + TITAN_HEAD) * FLOAT),
    ("fsdp", "reduce_scatter"): (4, (TITAN_EMBEDDING + 2 * TITAN_LAYER + TITAN_HEAD) * FLOAT),
    ("fsdp", "all_reduce"): (1 + 1 + 3, (TITAN_PARAMETERS + 2) * FLOAT + 8 + 8),
}
"""The embedding, each layer, and the last norm with the output, which stays gathered until backward. The norms of all
parameters. Numbers of tokens, of this step and of all; the mean and the greatest loss."""

TITAN_STREAM = TITAN_TOKENS * TITAN * FLOAT
TITAN_TP: Traffic = {
    ("tp", "all_gather"): (2 * (2 * 2 + 1), 2 * (2 * 2 + 1) * TITAN_STREAM),
    ("tp", "reduce_scatter"): (2 * (2 * 2 + 1), 2 * (2 * 2 + 1) * TITAN_STREAM),
    ("tp", "all_reduce"): (2 * 5 + 3 + 1, (2 * 5 * TITAN + 3 * TITAN_TOKENS + TITAN_PARAMETERS) * FLOAT),
}
"""The stream is split by tokens between attention and feed-forward: each gathers it and scatters its sum, and so do the
embedding, which scatters, and the output, which gathers; backward in reverse. Three numbers per token in the loss, and
the norms of all parameters. The gradients of the five norms stay partial sums: clipping reduces them, and AdamW again.
"""
TITAN_HALF_LAYER = (TITAN_LAYER - 2 * TITAN) // 2 + 2 * TITAN
TITAN_HALF_HEAD = TITAN + TITAN_EMBEDDING // 2
TITAN_FSDP_TP: Traffic = {
    ("fsdp", "all_gather"): (4 + 3, (2 * (TITAN_EMBEDDING // 2 + 2 * TITAN_HALF_LAYER) + TITAN_HALF_HEAD) * FLOAT),
    ("fsdp", "reduce_scatter"): (4, (TITAN_EMBEDDING // 2 + 2 * TITAN_HALF_LAYER + TITAN_HALF_HEAD) * FLOAT),
    ("fsdp", "all_reduce"): (1, TITAN_PARAMETERS * FLOAT),
    ("batch", "all_reduce"): (1, 8),
    ("loss_mesh", "all_reduce"): (3, 2 * FLOAT + 8),
    **{key: value for key, value in TITAN_TP.items() if key[1] != "all_reduce"},
    ("tp", "all_reduce"): (5 + 3 + 1, (5 * TITAN + 3 * TITAN_TOKENS + TITAN_PARAMETERS) * FLOAT),
}
"""A rank has half of each matrix, and the whole norms. FSDP reduces the norms' partial gradients over tp before
it scatters them. torchtitan's axes of the numbers of tokens and of the losses have groups of their own here.
"""
TITAN_MESSAGES = (4, 4 * 16 * TITAN * FLOAT)
"""One text per microbatch."""
TITAN_PP: Traffic = {("pp", "send"): TITAN_MESSAGES, ("pp", "recv"): TITAN_MESSAGES, ("pp", "all_reduce"): (1, FLOAT)}

CASES: tuple[Case, ...] = (
    Case(
        name="Hugging Face Trainer",
        program="packages/hugging_face.py",
        package="transformers",
        truth=Truth(
            steps=12,
            optimizer="AdamW",
            traffic={
                ("dp", "all_reduce"): (1, GPT2_WEIGHTS * FLOAT),
                ("dp", "all_gather"): (1, 2 * 8),
            },
            once={("dp", "broadcast"): (2, (GPT2_PARAMETERS + 1 + 1) * FLOAT), ("dp", "all_gather"): AROUND_EVALUATION},
            flops=2 * 2 * 4 * TOKENS * GPT2_FLOPS_PER_TOKEN,
            evaluated_after=(6, 12),
            saved_after=(6, 12),
        ),
    ),
    Case(
        name="Accelerate",
        program="packages/accelerated.py",
        package="accelerate",
        truth=Truth(
            steps=12,
            optimizer="AdamW",
            traffic=BUCKET,
            once=ORDER,
            flops=MLP_FLOPS,
            saved_after=(6, 12),
        ),
    ),
    Case(
        name="Lightning, own launcher",
        program="packages/lightning_ddp.py",
        package="lightning",
        own_launcher=True,
        truth=Truth(
            steps=12,
            optimizer="AdamW",
            traffic=LIGHTNING,
            once=LIGHTNING_ONCE,
            flops=MLP_FLOPS,
            evaluated_after=(6, 12),
            saved_after=(6, 12),
        ),
    ),
    Case(
        name="Lightning, torchrun",
        program="packages/lightning_ddp.py",
        package="lightning",
        truth=Truth(
            steps=12,
            optimizer="AdamW",
            traffic=LIGHTNING,
            once=LIGHTNING_ONCE,
            flops=MLP_FLOPS,
            evaluated_after=(6, 12),
            saved_after=(6, 12),
        ),
    ),
    *(
        Case(
            name=f"DeepSpeed ZeRO-{stage}",
            program="packages/deepspeed_zero.py",
            arguments=(str(stage),),
            package="deepspeed",
            environment={"DS_ACCELERATOR": "cpu"},
            truth=Truth(
                steps=12,
                optimizer="AdamW",
                traffic=traffic,
                once={(axis, operation): amounts for operation, amounts in ZERO_SAVES.items()},
                flops=ZERO_FLOPS,
                saved_after=(6, 12),
            ),
        )
        for stage, traffic, axis in ((1, ZERO_1, "world"), (2, ZERO_2, "world"), (3, ZERO_3, "dp"))
    ),
    Case(
        name="Ray Train",
        program="packages/ray_ddp.py",
        package="ray",
        own_launcher=True,
        environment={
            "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "600",
            "RAY_worker_register_timeout_seconds": "600",
            "RAY_gcs_server_request_timeout_seconds": "600",
        },
        truth=Truth(
            steps=12,
            optimizer="AdamW",
            traffic=BUCKET,
            once=ORDER,
            flops=2 * linear_flops(8, [(32, 64), (64, 16)]),
            saved_after=(6, 12),
        ),
    ),
    Case(
        name="Megatron-Core GPT, tensor parallelism",
        program="packages/megatron_gpt.py",
        package="megatron",
        truth=Truth(
            steps=12,
            optimizer="AdamW",
            traffic=MEGATRON,
            flops=2 * 4 * TOKENS * GPT2_FLOPS_PER_TOKEN,
        ),
    ),
    Case(
        name="torchtitan, FSDP",
        program="packages/torchtitan_llama.py",
        arguments=("fsdp",),
        package="torchtitan",
        truth=Truth(steps=12, optimizer="AdamW", mesh={"fsdp": 2}, traffic=TITAN_FSDP, flops=2 * TITAN_FLOPS),
    ),
    Case(
        name="torchtitan, tensor parallelism",
        program="packages/torchtitan_llama.py",
        arguments=("tp",),
        package="torchtitan",
        truth=Truth(steps=12, optimizer="AdamW", mesh={"tp": 2}, traffic=TITAN_TP, flops=TITAN_FLOPS),
    ),
    Case(
        name="torchtitan, FSDP x tensor parallelism",
        program="packages/torchtitan_llama.py",
        arguments=("fsdp+tp",),
        package="torchtitan",
        ranks=4,
        truth=Truth(
            steps=12, optimizer="AdamW", mesh={"fsdp": 2, "tp": 2}, traffic=TITAN_FSDP_TP, flops=2 * TITAN_FLOPS
        ),
    ),
    Case(
        name="torchtitan, pipeline",
        program="packages/torchtitan_llama.py",
        arguments=("pp",),
        package="torchtitan",
        truth=Truth(steps=12, optimizer="AdamW", mesh={"pp": 2}, traffic=TITAN_PP, flops=TITAN_FLOPS),
    ),
)
