"""The truth of the named programs against terms computed by hand, in us."""

from collections.abc import Mapping

import pytest

from tests.virtual_gpu.actions import US
from tests.virtual_gpu.programs import PROGRAMS
from tests.virtual_gpu.truth import truth

Terms = Mapping[str, float]
Ranks = list[list[Terms]]
"""Terms of each rank and step; `hidden ...` are the hidden host waits."""

EXPECTED: dict[str, Ranks] = {
    # Kernels at 3-8 and 24-29; the host launches at 0 and 21, and works until 42.
    # The wait until the next step's first launch is the host's; after the last kernel nothing is launched.
    "host bound": [
        [
            {"forward": 10, "launch_gap": 3 + 13 + 3 + 13},
            {"forward": 10, "launch_gap": 3 + 13 + 3, "unattributed": 13},
        ]
    ],
    # Kernels at 3-53-103-153-203. Step 2 begins on the device when step 1's kernels end.
    "device bound": [[{"forward": 100, "launch_gap": 3}, {"forward": 100}]],
    # Batches at 0-30 and 31-61, kernels at 33-133-233: the second batch costs nothing.
    "hidden loader": [
        [{"data_wait": 30, "launch_gap": 3, "forward": 100, "hidden data_wait": 61 - 33}, {"forward": 100}]
    ],
    # Kernels at 33-53 and 64-84: of the second batch, 31-61, the device waits from 53 on.
    "exposed loader": [
        [
            {"data_wait": 30, "launch_gap": 3, "forward": 20, "hidden data_wait": 53 - 33},
            {"data_wait": 61 - 53, "launch_gap": 3, "forward": 20},
        ]
    ],
    # Forward 3-23, backward 23-53-93, all-reduce 53-73, optimizer 93-103.
    "hidden collective": [[{"launch_gap": 3, "forward": 20, "backward": 70, "optimizer": 10}]] * 2,
    # Forward 3-23, backward 23-53, all-reduce 53-73, optimizer 73-83.
    "exposed collective": [
        [{"launch_gap": 3, "forward": 20, "backward": 30, "exposed_transfer[world]": 20, "optimizer": 10}]
    ]
    * 2,
    # Rank 1's backward ends at 93, so rank 0 waits from 53 to 93.
    "late peer": [
        [
            {
                "launch_gap": 3,
                "forward": 20,
                "backward": 30,
                "exposed_wait[world]": 40,
                "exposed_transfer[world]": 20,
                "optimizer": 10,
            }
        ],
        [{"launch_gap": 3, "forward": 20, "backward": 70, "exposed_transfer[world]": 20, "optimizer": 10}],
    ],
    "late peer without a trace": [
        [{"launch_gap": 3, "forward": 20, "backward": 30, "exposed_transfer[world]": 60, "optimizer": 10}]
    ],
    # Host 1's clock runs 0.1 % fast. The shortest kernel is the 20.02 us that it sees.
    "two hosts with drift": [
        [
            {
                "launch_gap": 3,
                "forward": 20,
                "backward": 30,
                "exposed_wait[world]": 39.98,
                "exposed_transfer[world]": 20.02,
                "optimizer": 10,
            }
        ],
        [
            {
                "launch_gap": 3.003,
                "forward": 20.02,
                "backward": 70.07,
                "exposed_transfer[world]": 20.02,
                "optimizer": 10.01,
            }
        ],
    ],
    "slow link": [[{"launch_gap": 3, "forward": 20, "backward": 30, "exposed_transfer[world]": 200, "optimizer": 10}]]
    * 2,
    # Forward 3-13, tp 13-18, backward 18-28, dp 28-35, optimizer 35-40.
    "two axes": [
        [
            {
                "launch_gap": 3,
                "forward": 10,
                "exposed_transfer[tp]": 5,
                "backward": 10,
                "exposed_transfer[dp]": 7,
                "optimizer": 5,
            }
        ]
    ]
    * 4,
    "recomputation": [[{"launch_gap": 3, "forward": 20, "recompute": 15, "backward": 30}]],
    # Step 1 ends with its backward at 113; the optimizer, 113-143, delays step 2's forward to 143-193.
    "optimizer on its own stream": [
        [{"launch_gap": 3, "forward": 50, "backward": 60}, {"optimizer": 30, "forward": 50, "backward": 60}]
    ],
    # Kernels at 3-33, 33-43 and 73-93, the copy at 33-73.
    "offload": [[{"launch_gap": 3, "forward": 60, "exposed_memory": 73 - 43}]],
    # Six kernels with 1 us between two: 3-23, 24-54, 55-65, 66-86, 87-117, 118-128.
    "graph replay": [[{"launch_gap": 3, "forward": 120, "kernel_wait": 5}]],
    # Forward at 3-53. Backward, at 4-34, began last and owns its time.
    "two compute streams": [[{"launch_gap": 3, "forward": 1 + 19, "backward": 30}]],
    "gradient accumulation": [
        [{"launch_gap": 3, "forward": 40, "backward": 60, "exposed_transfer[world]": 20, "optimizer": 10}]
    ]
    * 2,
    # Stage 0: F 3-13-23, exchange 23-47, B 47-67, receive 47-79, B 79-99.
    # Stage 1: receive 3-15, F 15-25, B 25-45, exchange 45-47, F 47-57, B 57-77.
    "1F1B": [
        [
            {
                "launch_gap": 3,
                "forward": 20,
                "backward": 40,
                "exposed_wait[pp]": (45 - 23) + (77 - 67),
                "exposed_transfer[pp]": 2 + 2,
            }
        ],
        [{"launch_gap": 3, "forward": 20, "backward": 40, "exposed_wait[pp]": 10, "exposed_transfer[pp]": 2 + 2}],
    ],
    # Stage 0: F 3-13-23, exchange 23-37, I W 37-57, receive 37-67, I W 67-87.
    # Stage 1: receive 3-15, F I 15-35, W 35-45 hides the exchange 35-37, F I 45-65, W 65-75 hides the send.
    "zero bubble": [
        [
            {
                "launch_gap": 3,
                "forward": 20,
                "backward": 40,
                "exposed_wait[pp]": (35 - 23) + (65 - 57),
                "exposed_transfer[pp]": 2 + 2,
            }
        ],
        [{"launch_gap": 3, "forward": 20, "backward": 40, "exposed_wait[pp]": 10, "exposed_transfer[pp]": 2}],
    ],
    # Kernels at 3-23, 54-74, 74-94 and 106-126; collections at 1-51 and 53-103.
    "garbage collection": [
        [
            {"launch_gap": 3 + 3, "forward": 40, "gc": 51 - 23, "hidden gc": 20 + 20},
            {"launch_gap": 3, "forward": 40, "gc": 103 - 94, "hidden gc": 20},
        ]
    ],
    "compilation": [[{"compile": 60, "launch_gap": 3, "forward": 20}]],
    # Kernel 3-53, copy 53-55, synchronization 2-59, host work to 69, kernel 72-92.
    "item": [
        [
            {
                "launch_gap": 3 + 10 + 3,
                "forward": 70,
                "exposed_memory": 2,
                "sync": 59 - 55,
                "hidden sync": 55 - 3,
            }
        ]
    ],
    # Kernels at 3-53 and 60-80, synchronization at 1-57.
    "device synchronization": [[{"launch_gap": 3 + 3, "forward": 70, "sync": 57 - 53, "hidden sync": 53 - 3}]],
    # Kernel 3-23, copy 23-53, writing 53-153, kernel 156-176. The host checkpoints from 1 on, and until 53 it waits for
    # its copy.
    "checkpoint": [
        [
            {
                "launch_gap": 3 + 3,
                "forward": 40,
                "exposed_memory": 30,
                "checkpoint_stall": 100,
                "hidden sync": 53 - 3,
                "hidden checkpoint_stall": 53 - 3,
            }
        ]
    ],
    # Kernels at 3-23, 23-53 and 85-105; evaluation at 1-82. All idle time in it is cut out, also before its kernel.
    "evaluation": [[{"launch_gap": 1 + 3, "forward": 40, "evaluation": (3 - 1) + 30 + (82 - 53)}]],
    # Kernels at 3-23, 23-53 and 53-73; evaluation at 1-2. The model's forward is part of the evaluation around it.
    "evaluation of a wrapped model": [[{"launch_gap": 1 + 1, "forward": 40, "evaluation": 1 + 30}]],
    # Kernels at 3-13 and 13-23, evaluation at 1-2. The first kernel is launched before it, and runs after it.
    "evaluation after unknown kernels": [[{"launch_gap": 1 + 1, "other_compute": 10, "evaluation": 1 + 10}]],
    # Evaluation at 0-1, its kernel at 3-13. The latency after its range is a launch gap like any other.
    "latency of an evaluation": [[{"launch_gap": 3 - 1, "evaluation": 1 + 10}]],
    "zero_grad": [[{"launch_gap": 3, "exposed_memory": 5, "optimizer": 10}]],
    "unknown phase": [[{"launch_gap": 3, "other_compute": 10}]],
}


def in_ns(terms: Terms) -> dict[str, int]:
    return {name: round(us * US) for name, us in terms.items()}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_terms_of_a_program_are_those_computed_by_hand(name: str) -> None:
    computed = [
        [
            {
                **step.terms,
                **({"evaluation": step.evaluation_ns} if step.evaluation_ns else {}),
                **{f"hidden {activity}": ns for activity, ns in step.hidden.items()},
            }
            for step in steps.values()
        ]
        for steps in truth(PROGRAMS[name]).values()
    ]
    assert computed == [[in_ns(terms) for terms in steps] for steps in EXPECTED[name]]


def test_the_named_programs_contain_every_term() -> None:
    named = {term for ranks in EXPECTED.values() for steps in ranks for terms in steps for term in terms}
    assert named == {
        *("forward", "backward", "recompute", "optimizer", "other_compute", "exposed_memory", "evaluation"),
        *(f"exposed_{part}[world]" for part in ("transfer", "wait")),
        *(f"exposed_{part}[pp]" for part in ("transfer", "wait")),
        *("exposed_transfer[tp]", "exposed_transfer[dp]"),
        *("data_wait", "checkpoint_stall", "gc", "compile", "sync", "launch_gap", "kernel_wait", "unattributed"),
        *("hidden data_wait", "hidden checkpoint_stall", "hidden gc", "hidden sync"),
    }
