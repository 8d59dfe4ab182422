"""Operators of the engine's modules in fp32 on a CPU: what they create, and save.

Each function takes values that its caller holds, and returns one that the caller holds.
"""

from traincope.plan.allocator.tape import Tape, Value

FLOAT = 4
"""Bytes of a number in fp32."""


def linear(tape: Tape, x: Value, *, inputs: int, outputs: int, stops: bool = False) -> Value:
    """x W^T. Backward multiplies the gradient with the saved input, and with W.

    `stops`: recomputation ends here, so the result is not made.
    """
    rows = 0 if stops else x.num_bytes // inputs
    weight = FLOAT * inputs * outputs
    return tape.run(x, out=rows * outputs, gradients=(x.num_bytes,), saved=(x,), weights=(weight,))


def rms_norm(tape: Tape, x: Value, *, width: int, whole: bool = True) -> Value:
    """x / sqrt(mean(x^2) + eps) * w, which torch has on a CPU as single operators.

    `pow` saves x, `mul` saves x and the norm of each row, and the last `mul` the product that it scales. The gradient
    of a factor that is broadcast is made whole before it is summed.
    """
    full, rows = x.num_bytes, x.num_bytes // width
    squares = tape.run(x, out=full, gradients=(full,), saved=(x,), backward=2 * full)
    mean = tape.run(squares, out=rows, gradients=(full,))
    tape.drop(squares)
    scale = tape.run(mean, out=rows, gradients=(rows,), saves_output=True, forward=rows, backward=2 * rows)
    tape.drop(mean)
    scaled = tape.run(x, scale, out=full, gradients=(full, rows), saved=(x, scale), backward=full)
    tape.drop(scale)
    result = tape.run(
        scaled, out=full, gradients=(full,), saved=(scaled,), backward=full if whole else 0, weights=(FLOAT * width,)
    )
    tape.drop(scaled)
    return result


def rotate(tape: Tape, x: Value) -> Value:
    """Rotary positions: halves of x times cosines and sines, which need no gradient, and their concatenation."""
    full, half = x.num_bytes, x.num_bytes // 2
    parts = [tape.view(x)]  # both halves; their gradients are concatenated
    split = parts[0].node
    assert split is not None
    split.gradients = (full,)
    pieces = []
    for _ in range(2):
        cosine = tape.run(parts[0], out=half, gradients=(half,))
        sine = tape.run(parts[0], out=half, gradients=(half,))
        summed = tape.run(cosine, sine, out=half, gradients=(None, None))
        tape.drop(cosine, sine)
        pieces.append(summed)
    result = tape.run(*pieces, out=full, gradients=(None, None))
    tape.drop(*pieces, *parts)
    return result


def attention(tape: Tape, query: Value, key: Value, value: Value, *, row_bytes: int, keeps: bool = True) -> Value:
    """Fused attention: it saves its inputs, its output, and one number per head and token (`row_bytes`).

    Dao et al. 2022, arXiv:2205.14135. `keeps` False: it saves only inputs, and backward runs it again.
    """
    out = query.num_bytes
    logs = tape.leaf(row_bytes)
    result = tape.run(
        query,
        key,
        value,
        out=out,
        gradients=(out, key.num_bytes, value.num_bytes),
        saved=(query, key, value, *((logs,) if keeps else ())),
        saves_output=keeps,
        backward=0 if keeps else out + row_bytes,
    )
    tape.drop(logs)
    return result


def copy(tape: Tape, x: Value) -> Value:
    """x in another order of its elements."""
    return tape.run(x, out=x.num_bytes, gradients=(None,))


def add(tape: Tape, x: Value, y: Value) -> Value:
    return tape.run(x, y, out=y.num_bytes, gradients=(None, None))


def multiply(tape: Tape, x: Value, y: Value) -> Value:
    size = x.num_bytes
    return tape.run(x, y, out=size, gradients=(size, size), saved=(x, y))


def silu(tape: Tape, x: Value) -> Value:
    return tape.run(x, out=x.num_bytes, gradients=(x.num_bytes,), saved=(x,))


def dropout(tape: Tape, x: Value) -> Value:
    """On a CPU the mask is as large as x: numbers in place of bytes."""
    mask = tape.leaf(x.num_bytes)
    result = tape.run(x, out=x.num_bytes, gradients=(x.num_bytes,), saved=(mask,))
    tape.drop(mask)
    return result


def embedding(tape: Tape, *, rows: int, width: int, vocabulary: int) -> Value:
    """Rows of a matrix. The gradient of the matrix is whole."""
    return tape.run(out=FLOAT * rows * width, gradients=(), weights=(FLOAT * vocabulary * width,))


def cross_entropy(tape: Tape, logits: Value, *, split: bool = False) -> Value:
    """Logarithm of softmax, which is saved, and the mean of one number per row.

    Both backwards create a gradient of the logits' size. `split`: logits are split along the vocabulary. There torch's
    `loss_parallel` computes the gradient of both at once, (softmax - target) x gradient, in three steps.
    """
    size = logits.num_bytes
    logs = tape.run(
        logits, out=size, gradients=(None if split else size,), saves_output=True, forward=size if split else 0
    )
    loss = tape.run(logs, out=FLOAT, gradients=(size,), saved=(logs,), backward=2 * size if split else 0)
    tape.drop(logs)
    return loss


def place(tape: Tape, x: Value, *, rows: int, spare: int) -> Value:
    """Copy the rows of x to other places of `rows` bytes of zeros, with `spare` bytes at their end that are cut off.

    `index_copy` copies the zeros first, and saves x for the shape of its gradient.
    """
    whole = rows + spare
    return tape.run(x, out=whole, gradients=(x.num_bytes,), saved=(x,), forward=whole, backward=whole if spare else 0)
