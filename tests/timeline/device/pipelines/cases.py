"""Named pipelines, one for each way in which a stage idles, and random ones."""

from hypothesis import strategies as st

from tests.analysis.pipeline.orders import gpipe, one_forward_one_backward
from tests.timeline.device.pipelines.programs import Pipeline
from traincope.plan.pipeline.actions import Action
from traincope.plan.pipeline.orders import SCHEDULES, Shape, orders

TIMES = {"F": 100, "B": 200, "I": 110, "W": 90}
INTERLEAVED = orders("interleaved", Shape(ranks=2, microbatches=4, chunks=2))
ZERO_BUBBLE = orders("zb-1p", Shape(ranks=3, microbatches=4))
VEE = orders("zb-v", Shape(ranks=2, microbatches=4, chunks=2))

CASES = {
    "GPipe": Pipeline(orders=gpipe(3, 4), times=TIMES),
    "GPipe on one stream": Pipeline(orders=gpipe(3, 3), times=TIMES, one_stream=True, wire=40),
    "1F1B": Pipeline(orders=one_forward_one_backward(2, 4), times=TIMES, batched=True, loss=10, steps=2),
    "1F1B of four stages": Pipeline(orders=one_forward_one_backward(4, 5), times=TIMES, batched=True),
    "interleaved": Pipeline(orders=INTERLEAVED, times=TIMES),
    "zero bubble": Pipeline(orders=ZERO_BUBBLE, times=TIMES),
    "zero bubble in a V": Pipeline(orders=VEE, times=TIMES),
    "two stages on one rank": Pipeline(
        orders=orders("interleaved", Shape(ranks=1, microbatches=2, chunks=2)), times=TIMES, slower={1: 30}
    ),
    "slow link": Pipeline(orders=one_forward_one_backward(3, 4), times=TIMES, batched=True, wire=150),
    "slow link, messages ahead": Pipeline(orders=ZERO_BUBBLE, times=TIMES, wire=150),
    "late action": Pipeline(
        orders=one_forward_one_backward(2, 4), times=TIMES, batched=True, late={Action("F", 0, 1): 500}
    ),
    "unbalanced stages": Pipeline(orders=gpipe(3, 3), times=TIMES, slower={1: 80}),
    "data wait of one stage": Pipeline(
        orders=one_forward_one_backward(2, 3), times=TIMES, batched=True, batch={0: 700}, steps=2
    ),
    "host-bound stage": Pipeline(orders=one_forward_one_backward(2, 3), times=TIMES, batched=True, host={1: 300}),
    "host-bound zero bubble": Pipeline(orders=ZERO_BUBBLE, times=TIMES, host={1: 150}),
}


@st.composite
def pipelines(draw: st.DrawFn) -> Pipeline:
    """Schedules of 2 to 4 ranks with drawn work, delays and links."""
    name = draw(st.sampled_from(("gpipe", "1f1b", "interleaved", "zb-1p", "zb-v")))
    ranks = draw(st.integers(2, 4 if SCHEDULES[name].min_chunks == 1 else 2))
    shape = Shape(ranks=ranks, microbatches=ranks * draw(st.integers(1, 2)), chunks=SCHEDULES[name].min_chunks)
    order = orders(name, shape)
    some_us = st.integers(20, 300)
    actions = st.sampled_from(sorted({action for row in order.values() for action in row}))
    return Pipeline(
        orders=order,
        times=draw(st.fixed_dictionaries(dict.fromkeys("FBIW", some_us))),
        wire=draw(st.integers(1, 200)),
        slower=draw(st.dictionaries(st.integers(0, shape.stages - 1), some_us, max_size=1)),
        late=draw(st.dictionaries(actions, some_us, max_size=2)),
        host=draw(st.dictionaries(st.integers(0, ranks - 1), some_us, max_size=2)),
        batch=draw(st.dictionaries(st.integers(0, ranks - 1), some_us, max_size=1)),
        batched=name == "1f1b",
        loss=draw(st.sampled_from((0, 15))),
        steps=draw(st.integers(1, 2)),
    )
