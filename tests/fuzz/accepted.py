"""The differences from torch that are right: rules, never seeds.

An instrument that meets one returns the text ``accepted: NAME``; the driver counts it by its rule.
"""

from __future__ import annotations

from typing import NamedTuple


class Rule(NamedTuple):
    """A difference that stays: what torch gives, what we give, and why ours is right."""

    torch: str
    ours: str
    why: str


RULES: dict[str, Rule] = {
    "float64_agrees": Rule(
        "over- or underflows, or loses digits, in a narrow dtype (fmod of a large number is nan)",
        "what torch gives of the same values in float64, rounded, or nearer to it than torch",
        "float64 is the exact answer up to one rounding",
    ),
    "slope_without_nan": Rule(
        "a nan slope by inf / inf or 0 * inf in its formula: logaddexp(inf, inf), xlogy(0, 0)",
        "the limit, or 0",
        "the derivative exists; one infinite element does not spoil the gradients of others",
    ),
    "slope_at_nan": Rule(
        "0, 1 or nan as the slope of a piecewise function at nan itself",
        "another of these",
        "torch's own kernels differ: full vector registers and the rest of a row, float32 and 64",
    ),
    "nan_is_the_extreme": Rule(
        "which of several nan is chosen, or a nan gradient for the whole row (amax)",
        "the first nan is chosen, and takes the gradient",
        "the value is the same; the gradient goes where the value came from, as in torch's max",
    ),
    "order_of_terms": Rule(
        "sums of infinite or overflowing terms: inf or nan by their order and zero padding",
        "inf or nan by another order",
        "0 * inf is nan: which zeros are multiplied is the algorithm's choice, in torch's too",
    ),
    "limits": Rule(
        "nan or a large number at poles, infinities and the ends of float64, or by integers or "
        "terms that wrap, over- or underflow within a formula",
        "the limit; the number that the formula has without wrapping",
        "gcd(-2**63, 3) is 1, trigamma(-1) infinite, zeta(2, inf) and hardswish(-inf) 0, the lower "
        "incomplete gamma function of (5e-324, 1) 1",
    ),
    "exact_products": Rule(
        "nan as the gradient of a product by dividing by an element that is 0, nan or infinite",
        "the product of the others",
        "the derivative does not contain that element",
    ),
    "which_of_equals": Rule(
        "another one of equal elements, or of nans, is chosen, and has the gradient (mode, "
        "kthvalue, median, topk; sort and msort of more than 16 elements, where not stable)",
        "the first",
        "torch documents no choice; scatter_reduce counts an old element that takes no part",
    ),
    "dtype_without_a_kernel": Rule(
        torch="refuses a dtype for which it has no kernel: 'not implemented for Half', bool, ...",
        ours="computes it by the rule of the other dtypes",
        why="the result is defined; nothing but a kernel is missing",
    ),
    "history_that_cannot_be_followed": Rule(
        torch="refuses writes to results of split and unbind, to views made under no_grad, and "
        "a second derivative that nobody wrote",
        ours="records the write, and derives gradients of gradients",
        why="the value is the one that the program says, and so is the gradient",
    ),
    "windows_that_overlap": Rule(
        torch="writes to overlapping windows in an order of its own, or refuses",
        ours="refuses a view that shows an element twice",
        why="the result depends on the order of writes",
    ),
    "layout_by_a_library": Rule(
        torch="strides of products, factorizations and nonzero are those that a library left",
        ours="row-major",
        why="no program can rely on them; all that is said of strides elsewhere agrees",
    ),
    "view_of_a_leaf_under_no_grad": Rule(
        torch="x.t() under no_grad requires grad, though it has no history",
        ours="it does not require grad",
        why="a gradient that arrives there is lost to the leaf",
    ),
    "gradient_of_zeros": Rule(
        torch="a gradient of zeros where a result does not depend on an operand smoothly",
        ours="None, as for an operand that was not used",
        why="both train in the same way; None costs nothing",
    ),
    "rows_of_empty_vectors": Rule(
        torch="block_diag(zeros(0), x) is [[0], [x]]; the gradient of x is that of the row above",
        ours="the gradient of the row where x is",
        why="torch's forward counts a vector without elements as a row, its backward does not",
    ),
    "size_of_the_cotangent": Rule(
        torch="a gradient of matrix_exp with a relative error of the rounding times the size of "
        "the cotangent: 1e-12 at 1e4, 1e-4 at 1e12",
        ours="one rounding: the derivative for a cotangent of size 1, times its size",
        why="the derivative is linear in the cotangent; 60 digits agree with ours to 1e-16",
    ),
    "values_are_checked_when_computed": Rule(
        torch="raises at the call for values that do not fit, such as indices out of range",
        ours="raises when they are computed, with the line of the call",
        why="a check at the call would wait for the device (see docs/architecture.md)",
    ),
}
LIMIT = 20

assert len(RULES) <= LIMIT
