"""Bytes of small graphs, computed by hand as torch's autograd frees them."""

from traincope.plan.allocator import operators as ops
from traincope.plan.allocator.sharing import greedy_shares
from traincope.plan.allocator.tape import Storage, Tape


def received(tape: Tape) -> tuple[list[int], list[Storage]]:
    """Run the tape's nodes backward; return the bytes of gradients of parameters, which stay."""
    kept: list[Storage] = []
    tape.backward(tape.detach(), receive=lambda _, gradient: kept.append(gradient))
    return [each.num_bytes for each in kept], kept


def test_a_linear_layer_saves_its_input_until_both_gradients_exist() -> None:
    """2 rows of 3 numbers to 5: input 24 bytes, output 40, gradients of the input 24 and of the matrix 60."""
    tape = Tape()
    x = tape.leaf(24)
    y = ops.linear(tape, x, inputs=3, outputs=5)
    assert tape.now == 24 + 40
    tape.drop(x)
    assert tape.now == 24 + 40  # saved
    tape.send(y.node, tape.take(40))
    tape.drop(y)
    assert tape.now == 24 + 40
    assert received(tape)[0] == [60]
    assert tape.peak == 24 + 40 + 24 + 60
    assert tape.now == 60


def test_a_residual_connection_adds_the_second_gradient_in_place() -> None:
    """y = x + silu(x), 8 bytes each: x is saved, and no third gradient is made."""
    tape = Tape()
    leaf = tape.leaf(8)
    x = tape.view(leaf)
    tape.drop(leaf)
    branch = ops.silu(tape, x)
    y = ops.add(tape, x, branch)
    tape.drop(x, branch)
    assert tape.now == 8 + 8  # x, saved by silu, and y
    tape.send(y.node, tape.take(8))
    tape.drop(y)
    tape.peak = 0
    received(tape)
    # silu's backward: x, the gradient that both branches share, and silu's. Then the shared one is added to.
    assert tape.peak == 3 * 8
    assert tape.now == 0


def test_the_loss_has_three_tensors_of_the_logits_size_in_backward() -> None:
    """The logarithm of softmax, and the gradients of both operators; with logits split over ranks one more step."""
    for split, tensors in ((False, 3), (True, 4)):
        tape = Tape()
        logits = tape.leaf(1_000)
        loss = ops.cross_entropy(tape, logits, split=split)
        tape.drop(logits)
        assert tape.now == 1_000 + 4
        tape.send(loss.node, tape.take(4))
        tape.drop(loss)
        tape.peak = 0
        received(tape)
        assert tape.peak == tensors * 1_000 + (0 if not split else 4)
        assert tape.now == 0


def test_a_norm_keeps_its_input_one_number_per_row_and_the_scaled_input() -> None:
    """4 rows of 8 numbers: 128 bytes each, and 16."""
    tape = Tape()
    x = tape.leaf(128)
    y = ops.rms_norm(tape, x, width=8)
    tape.drop(x, y)
    assert tape.now == 2 * 128 + 16


def test_fused_attention_run_again_keeps_its_inputs_only() -> None:
    kept = []
    for keeps in (True, False):
        tape = Tape()
        query, key, value = tape.leaf(64), tape.leaf(32), tape.leaf(32)
        tape.drop(ops.attention(tape, query, key, value, row_bytes=4, keeps=keeps))
        kept.append(tape.now)
    assert kept == [64 + 32 + 32 + 64 + 4, 64 + 32 + 32]


def test_the_largest_parameter_goes_to_the_rank_with_least() -> None:
    """9; then 7 to the other; 5 to it as well (12); 4 to the first (13); 2 to the other (14)."""
    assert greedy_shares([2, 4, 9, 5, 7], ranks=2) == [13, 14]
