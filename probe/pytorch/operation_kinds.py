"""Operations of autograd by what they make of numbers: those that may turn finite numbers into NaN or Inf, those that
pass numbers on, and those in which a number that is not finite is meant."""

from __future__ import annotations

import re

_NAME = re.compile(r"^(?:torch::autograd::)?(.+?)(?:Backward\d*)?$")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


MOVES = _names(
    "T Transpose Permute View UnsafeView Reshape ReshapeAlias ViewAs Expand Squeeze Unsqueeze Select Slice Split"
    " SplitWithSizes UnsafeSplit Unbind Cat Stack Index IndexSelect Gather Clone Alias AsStrided Repeat Flip Roll"
    " Narrow Diagonal Unfold Embedding MaskedSelect MaskedScatter MaskedFill Where Neg Abs Relu Threshold"
    " LeakyRelu Max Min Amax Amin Maximum Minimum MaxPool2DWithIndices MaxPool3DWithIndices Sort Topk Triu Tril"
    " ConstantPadNd CopySlices CopyBackwards Clamp ClampMin ClampMax Hardtanh Sigmoid Tanh Sign Erf Sin Cos"
    " NanToNum ReflectionPad1D ReflectionPad2D ReplicationPad2D UpsampleNearest2D PixelShuffle"
)
"""Operations that make only numbers that they read, or bounded ones."""
COPIES = _names("T Transpose Permute View UnsafeView Expand Squeeze Unsqueeze Clone Alias ToCopy Slice Select")
"""Operations behind which a parameter is still that parameter."""
SUMS = _names("Add Sub Rsub Lerp Gelu Silu Elu Softplus Mish Hardswish NativeDropout LogSigmoid")
"""Operations that make no NaN of finite numbers, and seldom Inf."""
PRODUCTS = _names("Mul Sum Cumsum Square Exp Exp2 Expm1 Sinh Cosh Reciprocal")
"""Operations that make Inf of finite numbers, but no NaN."""
CONTRACTIONS = _names(
    "Mean Linear Dot Addmm Mm Bmm Baddbmm Addbmm Mv Addmv Addcmul Prod Convolution MkldnnConvolution ToCopy AvgPool2D"
    " AdaptiveAvgPool2D MseLoss SmoothL1Loss HuberLoss"
)
"""Operations that make Inf of large numbers, and NaN only where Inf is then added to -Inf."""
GROWTHS = _names("Exp Exp2 Expm1 Sinh Cosh Pow Div Log Log2 Log10 Log1P Reciprocal Rsqrt Atanh Logit Lgamma")
"""Operations that make Inf of numbers that are not large."""
EXCLUDES = _names(
    "Softmax LogSoftmax SafeSoftmax Logsumexp Logcumsumexp MaskedFill Where Max Min Amax Amin Maximum Minimum"
    " MaxPool2DWithIndices MaxPool3DWithIndices NllLoss NllLoss2D Gather Index Sort Topk Exp Exp2 Relu Threshold"
    " MaskedSelect ScaledDotProductFlashAttentionForCpu ScaledDotProductEfficientAttention"
)
"""Operations that are meant to read ``-inf`` where a mask excludes a number."""
BOUNDS = _names("Clamp ClampMin ClampMax Hardtanh Sigmoid Tanh Erf Where MaskedFill NanToNum")
"""Operations behind which Inf may be finite."""
REPLACES = _names("NanToNum Nansum Where MaskedFill MaskedSelect")
"""Operations behind which NaN may be gone."""
FACTORS = {
    "Mul": ("self", "other"),
    "Addmm": ("mat1", "mat2"),
    "Mm": ("self", "mat2"),
    "Bmm": ("self", "mat2"),
    "Convolution": ("input", "weight"),
}
"""Names under which operations save what they multiply."""
_WORDS = {
    "Addmm": "matrix multiplication",
    "Bmm": "matrix multiplication",
    "Convolution": "convolution",
    "Div": "division",
    "Exp": "exponential",
    "Log": "logarithm",
    "Mm": "matrix multiplication",
    "Mul": "multiplication",
    "Sqrt": "square root",
}
"""English for the most frequent operations."""


def base(node: str) -> str:
    """Return the name of an operation without what autograd adds to it: ``Div`` for ``DivBackward0``."""
    match = _NAME.match(node)
    return match[1] if match else node


def title(name: str) -> str:
    """Return the name of an operation for people, such as ``division (div)``."""
    if name == "CompiledFunction":
        return "compiled graph"
    short = _HUMP.sub("_", name).lower()
    return f"{_WORDS[name]} ({short})" if name in _WORDS else short


def doubt(name: str, spoilt: str) -> int:
    """Return how probable it is, from 0 to 3, that an operation makes NaN or Inf out of finite numbers."""
    if name in MOVES:
        return 0
    if name in SUMS:
        return 1
    if spoilt == "nan":
        return 1 if name in PRODUCTS else 2 if name in CONTRACTIONS else 3
    return 3 if name in GROWTHS else 2


def confines(name: str, spoilt: str) -> bool:
    """Return whether NaN, Inf or -Inf may be meant where it enters an operation."""
    if spoilt == "nan":
        return name in REPLACES
    return name in BOUNDS or (spoilt == "-inf" and name in EXCLUDES)
