"""The private names of torch that the engine uses exist in the installed torch."""

import inspect
import operator

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.pipelining import schedules
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from tests.distributed.ranks.pool import Pool
from traincope.engine.ranks.torch_private import (
    COSTLY_OPERATORS,
    PRIVATE_NAMES,
    DefaultAllGather,
    DefaultAllocMixin,
    ReduceScatter,
    costly_operators,
    dtensor_like,
    flash_backward,
    flash_forward,
    in_backward,
    innermost_saved_tensors_hooks,
    zero_redundancy_optimizer,
)


@pytest.mark.parametrize("name", PRIVATE_NAMES)
def test_torch_still_has(name: str) -> None:
    assert callable(operator.attrgetter(name)(schedules))


def test_actions_are_still_written_as_the_orders_write_them() -> None:
    action = schedules._Action.from_str("3F11")
    assert (action.stage_index, action.computation_type, action.microbatch_index) == (
        3,
        schedules.FORWARD,
        11,
    )
    assert str(schedules._Action.from_str("0B2")) == "0B2"


def test_torch_still_has_the_costly_operators() -> None:
    assert [str(operator) for operator in costly_operators()] == [f"{name}.default" for name in COSTLY_OPERATORS]
    assert all(isinstance(operator, torch._ops.OpOverload) for operator in costly_operators())


def test_attention_returns_the_logarithm_of_the_sum_of_exponentials() -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, 2, 5, 8) for _ in range(3))
    scores = query @ key.transpose(2, 3) / 8**0.5
    out, log_sum = flash_forward(query, key, value, causal=False)
    torch.testing.assert_close(log_sum, scores.logsumexp(dim=3))
    torch.testing.assert_close(out, scores.softmax(dim=3) @ value)


def test_backward_over_two_halves_of_the_keys_equals_backward_over_all() -> None:
    """With the output and logarithms of all keys, half of the keys gives its share of the query's gradient."""
    torch.manual_seed(0)
    gradient, query, key, value = (torch.randn(1, 2, 6, 8) for _ in range(4))
    out, log_sum = flash_forward(query, key, value, causal=False)
    saved = (out, log_sum)
    whole = flash_backward(gradient, query, key, value, *saved, causal=False)
    first, second = (
        flash_backward(gradient, query, key[:, :, half], value[:, :, half], *saved, causal=False)
        for half in (slice(0, 3), slice(3, 6))
    )
    torch.testing.assert_close(first[0] + second[0], whole[0])
    for number in (1, 2):
        torch.testing.assert_close(torch.cat((first[number], second[number]), dim=2), whole[number])


def test_the_gpu_kernels_still_accept_our_arguments() -> None:
    """Checks positional arguments. The CPU tests above check arguments that both kernels share."""
    forward = torch.ops.aten._scaled_dot_product_flash_attention.default._schema
    backward = torch.ops.aten._scaled_dot_product_flash_attention_backward.default._schema
    assert [each.name for each in forward.arguments[:5]] == ["query", "key", "value", "dropout_p", "is_causal"]
    assert [each.name for each in forward.returns[:2]] == ["output", "logsumexp"]
    given = "grad_out query key value out logsumexp cum_seq_q cum_seq_k max_q max_k dropout_p is_causal"
    assert [each.name for each in backward.arguments[:14]] == [*given.split(), "philox_seed", "philox_offset"]


@pytest.mark.parametrize(("owner", "name"), [(DeviceMesh, "_unflatten"), (distributed_c10d, "_resolve_process_group")])
def test_torch_still_unfolds_meshes_and_knows_groups_by_name(owner: object, name: str) -> None:
    assert callable(getattr(owner, name))


def test_the_innermost_hooks_on_saved_tensors_are_those_of_the_caller() -> None:
    def pack(tensor: Tensor) -> Tensor:
        return tensor

    def unpack(tensor: Tensor) -> Tensor:
        return tensor

    with saved_tensors_hooks(unpack, pack), saved_tensors_hooks(pack, unpack):
        assert innermost_saved_tensors_hooks() == (pack, unpack)


def test_in_backward_distinguishes_backward_from_forward() -> None:
    in_hook = []
    x = torch.ones(1, requires_grad=True)
    y = x * 2
    y.register_hook(lambda _: in_hook.append(in_backward()))
    y.backward()
    assert (in_backward(), in_hook) == (False, [True])


def test_fsdp_still_accepts_custom_communication() -> None:
    """Checks the names `output_tensor`, `input_tensor`, `group` and `op`."""
    gather = inspect.signature(DefaultAllGather.__call__).parameters
    assert list(gather) == ["self", "output_tensor", "input_tensor", "group", "async_op"]
    reduce = inspect.signature(ReduceScatter.__call__).parameters
    assert list(reduce) == ["self", "output_tensor", "input_tensor", "group", "op", "async_op"]
    assert callable(DefaultAllocMixin.allocate)


def test_a_local_piece_of_a_dtensor_stays_on_its_device(two_ranks: Pool) -> None:
    assert two_ranks.run(kept_as_it_is) == [True, True]


def kept_as_it_is() -> bool:
    mesh = init_device_mesh("cpu", (2,))
    like = distribute_tensor(torch.zeros(3, 4), mesh, [Shard(0)])
    local = torch.ones(like.to_local().shape)
    cut = dtensor_like(like, local)
    assert isinstance(cut, DTensor)
    return cut.to_local().data_ptr() == local.data_ptr() and (cut.shape, cut.placements) == (
        like.shape,
        like.placements,
    )


def test_the_zero_redundancy_optimizer_is_imported_without_a_warning() -> None:
    assert zero_redundancy_optimizer().__name__ == "ZeroRedundancyOptimizer"
