"""A method without a GPU kernel is refused in one sentence.

See also tests/distributed/equality/test_context_parallel.py.
"""

import pytest

from traincope.engine.config import Config, ParallelConfig, TrainConfig
from traincope.engine.parallel.context_parallel import check_kernel
from traincope.errors import ConfigError


def test_ring_attention_in_fp32_is_refused_only_on_a_gpu() -> None:
    config = Config(parallel=ParallelConfig(cp=2))
    check_kernel(config, device_type="cpu")
    with pytest.raises(ConfigError) as refused:
        check_kernel(config, device_type="cuda")
    assert str(refused.value) == (
        "parallel.cp_method = 'ring' has no fp32 kernel on GPUs; set train.precision = 'bf16', or cp_method = 'ulysses'"
    )


@pytest.mark.parametrize(
    ("method", "precision"), [("ring", "bf16"), ("ulysses", "fp32")], ids=["a ring in bf16", "ulysses in fp32"]
)
def test_other_methods_and_precisions_are_accepted_on_a_gpu(method: str, precision: str) -> None:
    parallel = ParallelConfig(cp=2, cp_method=method)  # type: ignore[arg-type]
    check_kernel(Config(parallel=parallel, train=TrainConfig(precision=precision)), device_type="cuda")  # type: ignore[arg-type]
