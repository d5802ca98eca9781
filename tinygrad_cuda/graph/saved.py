"""What PyTorch saves for the backward pass of each function: the table behind `check_versions`.

A row names parameters and results, or is a function of the arguments that gives such names or the
Tensors themselves, or None where the functions inside save for themselves. ``a:b`` saves the
Tensors of parameter ``a`` where one of ``b`` requires grad, ``a:b|c`` where one of ``b`` or ``c``
does; ``a!`` is saved for the first gradient alone, ``result!`` too. ``result`` stands for floating
results, ``integers`` for the others; ``result-2`` is the last but one; ``result?1`` is saved again
by the gradient of the second operand alone. What a function computes in between, nobody else can
write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tinygrad_cuda.core.dtypes import float32
from tinygrad_cuda.graph import saved_products as products

Arguments = dict[str, Any]
Row = str | Callable[[Arguments], str | list[Any] | None]


def tensors_in(value: Any) -> Iterator[Any]:
    """The Tensors in a value, also in lists and tuples."""
    if _is_tensor(value):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors_in(part)


class SavedResult(NamedTuple):
    """Results that a function saves.

    Attributes:
        kind: ``result`` or ``integers``.
        number: 0 for all of the kind, -1 for the last one.
        again: whether a gradient may save them again.
        operand: whose gradient alone does; None for any.
    """

    kind: str
    number: int
    again: bool
    operand: int | None

    def again_by(self, operand: int | None) -> bool:
        """Whether the gradient of this operand may save them again."""
        return self.again and self.operand in (None, operand)


def saved_by(
    name: str, arguments: Arguments
) -> tuple[list[tuple[Any, bool, bool]], list[SavedResult]]:
    """The Tensors among the arguments that a function saves, and which results.

    The former with whether they are the first argument, and whether its gradient may save them
    again.

    Args:
        name: a key of `SAVED`.
        arguments: of the call, by parameter, the first one first.
    """
    row = SAVED[name]
    chosen = row(arguments) if callable(row) else row
    tokens: list[Any] = chosen.split() if isinstance(chosen, str) else chosen or []
    first = next(iter(arguments), "")
    saved: list[tuple[Any, bool, bool]] = []
    results: list[SavedResult] = []
    for token in tokens:
        if not isinstance(token, str):
            saved.append((token, False, True))
            continue
        again = not token.endswith("!")
        text, _, operand = token.rstrip("!").partition("?")
        kind, _, number = text.partition("-")
        if kind in RESULTS:
            whose = int(operand) if operand else None
            results.append(SavedResult(kind, -int(number or 0), again, whose))
        else:
            own = token.partition(":")[0] in (first, "input")
            tensors = _chosen(token.rstrip("!"), arguments)
            saved += [(tensor, own, again) for tensor in tensors]
    return saved, results


def _chosen(token: str, arguments: Arguments) -> Iterator[Any]:
    name, _, needed = token.partition(":")
    tensors = list(tensors_in(_argument(name, arguments)))
    if not needed or any(
        x.requires_grad for n in needed.split("|") for x in tensors_in(_argument(n, arguments))
    ):
        yield from tensors


def _argument(name: str, arguments: Arguments) -> Any:
    if name == "input" and name not in arguments:
        return next(iter(arguments.values()), None)
    return arguments.get(name)


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "cell")


# Rows that depend on the arguments ----------------------------------------------------------------


def _power(a: Arguments) -> str:
    """The gradient by the exponent is a multiple of the power, which that alone saves again."""
    exponent: Any = a.get("exponent")
    if not _is_tensor(exponent):
        return "input"
    if not exponent.requires_grad:
        return "input exponent result!"
    return "input exponent result?1" if _is_tensor(a.get("input")) else "exponent result"


def _double_power(a: Arguments) -> str:
    """Of operands of other dtypes it computes with copies in float64."""
    first = next(iter(a))
    named = {"input": a[first], "exponent": a.get("exponent"), "result": None}
    copies = [n for n, x in named.items() if _is_tensor(x) and x.dtype.itemsize != 8]
    return " ".join(name for name in _power(a).split() if name.rstrip("!?1") not in copies)


def _quotient(a: Arguments) -> str:
    """A number divided by a Tensor is the reciprocal times the number."""
    return "input:other other" if _is_tensor(a.get("input")) else ""


def _extreme(a: Arguments) -> str:
    if _is_tensor(a.get("dim")) or _is_tensor(a.get("other")):
        return "input dim other"
    return _selected(a)


def _selected(a: Arguments) -> str:
    """Along a dimension the index is enough."""
    along = a.get("dim") is not None or a.get("axis") is not None
    return "integers" if along else "input result"


def _lerp(a: Arguments) -> str:
    return "input:weight end:weight weight" if _is_tensor(a.get("weight")) else ""


def _scattered(a: Arguments) -> str:
    return "index" if a.get("reduce") is None else "input index src result"


def _divergence(a: Arguments) -> str:
    return "" if a.get("log_target") else "target input:target"


def _average(a: Arguments) -> str:
    """To one element it is the mean."""
    size = a.get("output_size")
    one = size == 1 or (isinstance(size, list | tuple) and all(n == 1 for n in size))
    return "" if one else "input"


def _padded(a: Arguments) -> str:
    return "input" if a.get("mode") in ("reflect", "replicate") else ""


def _probable(a: Arguments) -> str:
    """Labels, or probabilities."""
    target: Any = a.get("target")
    labels = _is_tensor(target) and not target.dtype.is_floating
    return "target weight" if labels else "target:input! weight"


def _poisson(a: Arguments) -> str:
    row = "target:input"
    row += " input:target" if a.get("log_input", True) else ""
    return f"{row} target:target" if a.get("full") else row


def _resized(a: Arguments) -> str:
    return "input" if a.get("mode") == "area" else ""


def _taken(a: Arguments) -> str:
    """Along a dimension the indices are broadcast first."""
    return "input indices" if a.get("dim") is None else "input"


def _attention(a: Arguments) -> str:
    """One kernel for four dimensions; else products of scaled copies."""
    mask: Any = a.get("attn_mask")
    if a["query"].ndim != 4 or a.get("dropout_p") or (mask is not None and mask.requires_grad):
        # Halves are computed on float32 copies.
        return "" if a["query"].dtype.itemsize == 2 else "value:query|key|attn_mask"
    floating = mask is not None and mask.dtype.is_floating
    return f"query key value result{' attn_mask' if floating else ''}"


def _norm(a: Arguments) -> str:
    """Of singular values nothing but those is saved."""
    order = a.get("ord", a.get("p"))
    if "A" in a and getattr(a["A"], "ndim", 0) > 1 and order in (2, -2):
        return "result"  # an extreme of the singular values
    return "" if order == "nuc" else "input result"


def _system(a: Arguments) -> str:
    """With dimensions to move it solves a copy."""
    return "A result" if a.get("dims") is None else "result"


def _weighted(a: Arguments) -> str:
    """The product of both kinds of weights is computed in between."""
    both = a.get("fweights") is not None and a.get("aweights") is not None
    own = " aweights:aweights" if a.get("correction", 1) else ""
    if both:
        return f"input:aweights fweights:aweights{own}"
    return f"input:aweights aweights:input|aweights fweights:input{own}"


def _convolved(a: Arguments) -> str:
    """What is padded more at the end than at the start is a copy."""
    if a.get("padding") != "same":
        return "input weight"
    kernel = a["weight"].shape[2:]
    apart = a.get("dilation", 1)
    steps = apart if isinstance(apart, list | tuple) else (apart,) * len(kernel)
    odd = any(step * (n - 1) % 2 for step, n in zip(steps, kernel))
    return "weight" if odd else "input weight"


def _smooth(a: Arguments) -> str:
    """With no smooth part it is l1_loss."""
    return "input target" if a.get("beta", 1) else ""


def _root_mean_square(a: Arguments) -> str:
    """Halves are computed on float32 copies."""
    halves = next(iter(a.values())).dtype.itemsize == 2
    return "weight:input!" if halves else "input:input weight:input!"


def _repeated(a: Arguments) -> str:
    """The power of a matrix; an inverse is multiplied in between."""
    n = a.get("n", 1)
    return "result" if n == -1 else "input" if n > 1 else ""


def _layer(a: Arguments) -> str | None:
    """PyTorch's CPU has one function for an LSTM's layer in float32, and composes the others."""
    fused = a["self"].gates == 4 and a["input"].dtype is float32
    return "input parts state result" if fused else None


def _steps(a: Arguments) -> list[Any]:
    """A product and a function of its result for each step, from the second on with a gradient."""
    gates, weight, *rest = a["operands"]
    hidden, memory = rest if a["row"].name == "lstm" else (rest[-1], None)
    saved = [hidden] if weight.requires_grad else []
    if hidden.requires_grad or gates.shape[0] > 1:
        saved.append(weight)
    gradual = any(x.requires_grad for x in (gates, weight, hidden))
    return [*saved, memory] if memory is not None and gradual else saved


_PRODUCT = "input:other other:input"

# A row and the functions that it is for, by their names in this package; the form in place has
# that of the other.
_ROWS: tuple[tuple[Row, str], ...] = (
    (
        "",
        "add sub neg sum mean cumsum reshape view permute transpose expand repeat tile cat stack "
        "hstack vstack dstack column_stack split chunk unbind squeeze unsqueeze flip roll rot90 "
        "narrow select tril triu diag diagonal diag_embed diagflat clone contiguous flatten floor "
        "unflatten movedim unfold ceil trunc round frac sign floor_divide positive block_diag "
        "cartesian_prod diff trapezoid cumulative_trapezoid gradient pixel_shuffle "
        "pixel_unshuffle tensor_split hsplit vsplit dsplit to float double half bfloat16 deg2rad "
        "rad2deg broadcast_tensors broadcast_to meshgrid atleast_1d atleast_2d atleast_3d trace "
        "lu_unpack corrcoef l1_loss fill zero copy detach expand_as gaussian_nll_loss ndtr "
        "margin_ranking_loss triplet_margin_loss triplet_margin_with_distance_loss as_strided "
        "select_scatter slice_scatter diagonal_scatter as_strided_scatter channel_shuffle "
        "hinge_embedding_loss quantile nanquantile dropout dropout1d dropout2d dropout3d "
        "alpha_dropout feature_alpha_dropout repeat_interleave sum_to_size kron",
    ),
    (
        "input",
        "abs acos acosh asin asinh atan atanh cos cosh sin sinh log log2 log10 log1p square sinc "
        "digamma lgamma mvlgamma erf erfc i0 entr gelu silu mish softplus elu celu selu softsign "
        "logsigmoid hardsigmoid hardswish leaky_relu hardtanh relu6 hardshrink softshrink logit "
        "threshold rrelu nan_to_num renorm nanmean nansum var var_mean glu combinations "
        "avg_pool1d avg_pool2d avg_pool3d local_response_norm vander normalize "
        "instance_norm matrix_exp logdet angle erfinv",
    ),
    (
        "result",
        "exp exp2 expm1 sqrt rsqrt reciprocal tanh sigmoid tan softmax softmin log_softmax relu "
        "svd ndtri eigh eigvalsh cholesky qr inv tensorinv svdvals pairwise_distance",
    ),
    (
        "input result",
        "cumprod sgn std amax amin aminmax prod logsumexp logcumsumexp i0e i1 i1e erfcx "
        "log_ndtr pinv det pdist",
    ),
    ("integers", "sort topk kthvalue mode msort frexp argsort"),
    (
        "input! integers",
        "cummax cummin max_pool1d max_pool2d max_pool3d adaptive_max_pool1d adaptive_max_pool2d "
        "adaptive_max_pool3d fractional_max_pool2d fractional_max_pool3d",
    ),
    (_PRODUCT, "mul cross vdot"),
    ("input other", "maximum minimum fmax fmin atan2 logaddexp logaddexp2 xlogy xlog1py"),
    ("input other result", "dist"),
    ("input target", "mse_loss huber_loss soft_margin_loss multilabel_margin_loss"),
    (
        "input target weight",
        "binary_cross_entropy multi_margin_loss multilabel_soft_margin_loss",
    ),
    ("input! target weight", "nll_loss"),
    ("input target weight pos_weight", "binary_cross_entropy_with_logits"),
    ("input1 input2", "cosine_embedding_loss"),
    (_convolved, "conv1d conv2d conv3d"),
    ("input weight", "conv_transpose1d conv_transpose2d conv_transpose3d"),
    ("input weight", "prelu group_norm"),
    ("input weight bias!", "layer_norm"),
    ("input weight running_mean running_var", "batch_norm"),
    (_root_mean_square, "rms_norm"),
    (products.linear, "linear"),
    (products.matmul, "matmul"),
    ("input:mat2 mat2:input", "mm bmm"),
    ("input:vec vec:input", "mv"),
    ("input:vec2 vec2:input", "outer"),
    ("input:tensor tensor:input", "dot"),
    ("mat1:mat2 mat2:mat1", "addmm"),
    ("mat:vec vec:mat", "addmv"),
    ("vec1:vec2 vec2:vec1", "addr"),
    ("batch1:batch2 batch2:batch1", "addbmm baddbmm"),
    (products.tensordot, "tensordot"),
    (products.inner, "inner"),
    ("x:y y:x", "vecdot"),
    (products.einsum, "einsum"),
    (products.multi_dot, "multi_dot"),
    ("tensor1:tensor2 tensor2:tensor1", "addcmul"),
    ("tensor1:tensor2 tensor2", "addcdiv"),
    ("input:other other:other", "fmod remainder"),
    ("input:input other:other result", "hypot"),
    ("other:input result", "ldexp"),
    ("input:input result", "copysign"),
    ("input:input other:input", "nextafter"),
    ("x1 x2 result", "cdist"),
    ("x1:x1 x2:x2", "cosine_similarity"),
    ("input1:input2|weight input2:input1|weight weight:input1|input2", "bilinear"),
    ("input min max", "clamp clamp_min clamp_max"),
    ("input grid", "grid_sample"),
    ("input", "embedding"),
    ("weight:per_sample_weights input offsets per_sample_weights", "embedding_bag"),
    ("input n", "polygamma"),
    ("condition", "where"),
    ("mask", "masked_fill masked_scatter"),
    ("input mask", "masked_select"),
    ("input index", "gather take"),
    ("index", "index_select index_fill"),
    ("index source:source", "index_copy put"),
    ("index:source source:source", "index_add"),
    ("index:src", "scatter_add"),
    ("input index src result", "scatter_reduce"),
    ("input index source result", "index_reduce"),
    ("indices", "max_unpool1d max_unpool2d max_unpool3d index_put"),
    ("key", "getitem setitem"),
    ("A result", "solve solve_ex solve_triangular"),
    ("A B result-1", "lstsq"),
    ("b A result-2", "triangular_solve"),
    ("A result-2", "slogdet"),
    ("input result-1", "std_mean"),
    ("B L result", "cholesky_solve"),
    ("L result", "cholesky_inverse"),
    ("LU pivots result", "lu_solve"),
    ("LU_data LU_pivots result", "lu_solve_of"),
    ("result integers-2", "lu_factor_ex lu_packed"),
    ("result integers", "lu_factor lu"),
    ("A tau result", "householder_product"),
    ("input tau other result", "ormqr"),
    (_power, "pow"),
    (_double_power, "float_power"),
    (_quotient, "div"),
    (_extreme, "max min"),
    (_selected, "median nanmedian"),
    (_lerp, "lerp"),
    (_weighted, "cov"),
    (_smooth, "smooth_l1_loss"),
    (_repeated, "matrix_power"),
    (_scattered, "scatter"),
    (_divergence, "kl_div"),
    (_average, "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d"),
    (_padded, "pad"),
    (_taken, "take_along_dim"),
    (_attention, "scaled_dot_product_attention"),
    (_probable, "cross_entropy"),
    (_poisson, "poisson_nll_loss"),
    (_resized, "interpolate"),
    (_norm, "norm vector_norm matrix_norm"),
    (_system, "tensorsolve"),
    (_layer, "recurrent_layer"),
    (_steps, "all_steps"),
)
# Their gradient computes with masks and sums of what they have saved: it saves none of it again.
_ONCE = (
    "logaddexp logaddexp2 log2 log10 log1p var var_mean clamp clamp_min clamp_max hardsigmoid amax "
    "amin aminmax max min median nanmedian maximum minimum fmax fmin nansum nanmean nan_to_num "
    "avg_pool1d avg_pool2d avg_pool3d cummax cummin binary_cross_entropy_with_logits"
)
SAVED_ONCE = frozenset(_ONCE.split())
# These have one result. A pass that reaches only intermediate values of theirs belongs to a second
# gradient, which needs nothing that was saved.
_SEVERAL = "var_mean max min median nanmedian aminmax cummax cummin"
STEPPED = SAVED_ONCE - frozenset(_SEVERAL.split())
# Their gradient is one function of the cotangent and of all that they have saved: that is saved
# again. The gradient of other functions saves what it reads.
_AGAIN = (
    "abs acos acosh asin asinh atan atanh cos cosh sin sinh tan tanh exp exp2 expm1 sqrt rsqrt "
    "reciprocal log square sigmoid digamma lgamma polygamma erf erfc erfinv i0 entr softmax "
    "softmin log_softmax logsumexp relu relu6 gelu silu mish softplus elu celu selu logsigmoid "
    "hardswish leaky_relu hardtanh hardshrink softshrink threshold prelu glu prod cumprod std pow "
    "float_power norm vector_norm fmod remainder layer_norm group_norm batch_norm mse_loss "
    "smooth_l1_loss huber_loss grid_sample conv1d conv2d conv3d conv_transpose1d conv_transpose2d "
    "conv_transpose3d logdet matrix_norm max_pool1d max_pool2d max_pool3d adaptive_max_pool1d "
    "adaptive_max_pool2d adaptive_max_pool3d fractional_max_pool2d fractional_max_pool3d nll_loss "
    "cross_entropy rms_norm eigh eigvalsh qr svdvals"
)
SAVED_AGAIN = frozenset(_AGAIN.split())
# PyTorch composes them of functions that save for themselves: a pass that visits some of these
# alone, such as that of a gradient's gradient, needs what they read.
COMPOSED = frozenset(("addbmm", "addr", "outer", "poisson_nll_loss"))
# Running statistics are saved, and written by each call.
UNCOUNTED = frozenset(("batch_norm",))
# Of these the row may say that the functions inside save for themselves.
MAY_DEFER = frozenset(("recurrent_layer",))
RESULTS = frozenset(("result", "integers"))
SAVED: dict[str, Row] = {name: row for row, names in _ROWS for name in names.split()}
