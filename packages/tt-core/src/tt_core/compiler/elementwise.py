"""Names of Relax's elementwise operators."""

__all__ = ["ELEMENTWISE", "OF_SEVERAL", "UNARY"]

_UNARY = (
    "abs acos acosh asin asinh astype atan atanh bitwise_not ceil clip cos cosh erf exp floor isfinite isinf isnan log"
    " logical_not negative round rsqrt sigmoid sign sin sinh sqrt square tan tanh trunc nn.gelu nn.gelu_tanh"
    " nn.leakyrelu nn.relu nn.selu nn.silu nn.softplus"
)
_OF_SEVERAL = (
    "add atan2 bitwise_and bitwise_or bitwise_xor divide equal floor_divide floor_mod greater greater_equal left_shift"
    " less less_equal log_add_exp logical_and logical_or logical_xor maximum minimum mod multiply not_equal power"
    " right_shift subtract where"
)

UNARY = frozenset(f"relax.{n}" for n in _UNARY.split())
"""Operators of one tensor; what else they take is no tensor."""
OF_SEVERAL = frozenset(f"relax.{n}" for n in _OF_SEVERAL.split())
"""Operators of several tensors, broadcast to each other."""
ELEMENTWISE = UNARY | OF_SEVERAL
