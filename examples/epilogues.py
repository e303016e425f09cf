"""Epilogues as Python functions: `generate --arch sm_90a --tile 128x256x64 --epilogue examples/epilogues.py:scaled`."""

from hgemm.epilogue_language import (
    Column,
    Matrix,
    Row,
    Scalar,
    bf16,
    clamp,
    f32,
    gelu,
    gelu_tanh,
    hardswish,
    leaky_relu,
    maximum,
    rsqrt,
    sigmoid,
    silu,
    softplus,
    tanh,
    where,
)


def scaled(acc, bias: Row, scale: Column[f32], residual: Matrix, alpha: Scalar):
    """A linear layer with gelu, one scale for each row of D, and a residual."""
    return gelu(alpha * acc + bias) * scale + residual


def addmm(acc, c: Matrix, alpha: Scalar, beta: Scalar):
    """alpha A B + beta C, as BLAS. C is read even if beta is 0."""
    return alpha * acc + beta * c


def dequantized(acc, row_scale: Column[f32], column_scale: Row[f32], bias: Row[f32]):
    """A product of quantized values: a scale for each row of A and each column of B."""
    return acc * row_scale * column_scale + bias


def rms_norm(acc, mean_square: Column[f32], gain: Row, epsilon: Scalar):
    """A linear layer after an RMS norm, of which only the mean squares of the rows were computed."""
    return acc * rsqrt(mean_square + epsilon) * gain


def swiglu(gate, up):
    """Both products of SwiGLU, whose weights `hgemm.interleave` packs."""
    return silu(gate) * up


def gelu_grad(acc, x: Matrix):
    """The gradient through the tanh form of gelu: x is its argument in the forward pass."""
    cube = 0.044715 * x * x * x
    t = tanh(0.7978845608028654 * (x + cube))
    inner = 0.7978845608028654 * (1.0 + 3.0 * 0.044715 * x * x)
    return acc * (0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * inner)


def masked(acc, mask: Row, scale: Scalar):
    """Attention scores: columns whose mask is not 0 are excluded."""
    return where(mask != 0.0, -30000.0, acc * scale)


def soft_capped(acc, cap: Scalar):
    """Scores between -cap and cap."""
    return cap * tanh(acc / cap)


def clipped(acc, bias: Row, low: Scalar, high: Scalar):
    """A bias, then a range."""
    return clamp(acc + bias, low, high)


def mobile(acc, bias: Row, residual: Matrix):
    """An inverted bottleneck: hardswish, rounded to bf16 before the residual."""
    return bf16(hardswish(acc + bias)) + residual


def mixed(acc, bias: Row, mix: Row):
    """A mixture of two activations for each column."""
    x = acc + bias
    return sigmoid(mix) * gelu_tanh(x) + (1.0 - sigmoid(mix)) * leaky_relu(x, 0.1)


def positive(acc, floor: Column[f32]):
    """Positive numbers above a floor for each row."""
    return maximum(softplus(acc), floor)
