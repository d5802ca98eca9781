"""Programs for both libraries, by family: each is run on awkward inputs and compared with torch.

A row is a function of (library, *tensors) and the names of its inputs, see INPUTS. Rows of
`WHOLE` are also run on integers; a row whose gradient is not compared stands in `FLAT`.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

import tinygrad_cuda as tc
from tinygrad_cuda.tensors import windows

Program = Callable[..., Any]


class Row(NamedTuple):
    """A program and the names of what it is run on."""

    program: Program
    inputs: tuple[str, ...] = ("matrix",)


def _numbers(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


def _ties(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng([7, *shape]).integers(-2, 3, shape).astype(np.float64)


def _positive(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng([3, *shape]).uniform(0.2, 4, shape)


def _square(n: int, *batch: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return _numbers(*batch, n, n, seed=seed) + 3 * np.eye(n)


INPUTS: dict[str, np.ndarray[Any, Any]] = {
    "scalar": np.array(0.75),
    "vector": _numbers(7),
    "other": _numbers(7, seed=1),
    "matrix": _numbers(5, 7),
    "matrix2": _numbers(5, 7, seed=1),
    "wide": _numbers(3, 1, 131),
    "cube": _numbers(2, 3, 4),
    "cube2": _numbers(2, 3, 4, seed=2),
    "ties": _ties(5, 7),
    "ties cube": _ties(2, 3, 4),
    "sorted": np.array([-1.5, -0.5, -0.5, 0.0, 0.25, 1.0]),
    "empty": np.zeros((0, 3)),
    "positive": _positive(5, 7),
    "positive2": _positive(5, 7) + 0.5,
    "fraction": np.random.default_rng(5).uniform(-0.9, 0.9, (5, 7)),
    "odd": np.array([[0.0, -0.0, 1.5], [np.inf, -np.inf, np.nan], [-2.5, 0.5, 30.0]]),
    "odd2": np.array([[1.0, -1.0, np.nan], [np.inf, 2.0, 1.0], [np.nan, -np.inf, 0.0]]),
    "holes": np.where(_numbers(5, 7) > 0.7, np.nan, _numbers(5, 7)),
    "square": _square(4),
    "square2": _square(4, seed=1),
    "squares": _square(3, 2),
    "definite": _square(4) @ _square(4).T,
    "tall": _numbers(6, 4),
    "flat": _numbers(4, 6),
    "batch": _numbers(2, 4, 3),
    "image": _numbers(2, 3, 6, 5),
    "index": np.array([[0, 2, 1, 4, 4, 0, 3], [1, 1, 0, 3, 2, 2, 2]]),
    "places": np.array([4, 0, 2, 0]),
    "counts": np.array([0, 5, 2, 2, 9, 0]),
    "mask": _numbers(5, 7, seed=4) > 0.3,
    "integers": np.random.default_rng(6).integers(-9, 9, (5, 7)),
    "bytes": np.random.default_rng(9).integers(0, 2, (5, 7)).astype(np.uint8),
    "integers2": np.random.default_rng(8).integers(1, 6, (5, 7)),
}


def _positive_signs(lib: Any, *vectors: Any) -> Any:
    """Magnitudes, since the signs of singular and eigenvectors are a matter of taste."""
    return [vector.abs() for vector in vectors]


def _namespace(lib: Any) -> Any:
    """What PyTorch keeps in nn.functional and the tensor layer has here."""
    if lib is not tc:
        return lib.nn.functional
    return SimpleNamespace(
        unfold=windows.unfold, fold=windows.fold, pad=tc.pad, pdist=tc.pdist,
        cosine_similarity=tc.cosine_similarity, pairwise_distance=tc.pairwise_distance,
    )  # fmt: skip


SPECIAL: dict[str, Row] = {
    **{
        name: Row(lambda lib, x, name=name: getattr(lib, name)(x), (kind,))
        for name, kind in {
            "asinh": "matrix",
            "acosh": "positive2",
            "atanh": "fraction",
            "erfc": "matrix",
            "erfinv": "fraction",
            "lgamma": "positive",
            "digamma": "positive",
            "frac": "matrix",
            "sinc": "matrix",
            "logit": "positive",
            "deg2rad": "matrix",
            "rad2deg": "matrix",
            "angle": "matrix",
            "sgn": "matrix",
            "positive": "matrix",
            "exp2": "matrix",
            "square": "matrix",
            "log10": "positive",
            "reciprocal": "positive",
        }.items()
        if name not in ("acosh", "logit")
    },
    "acosh": Row(lambda lib, x: (x + 0.5).acosh(), ("positive2",)),
    "logit eps": Row(lambda lib, x: (x / 4).logit(eps=0.1), ("positive",)),
    "logit": Row(lambda lib, x: lib.logit((x + 1) / 2), ("fraction",)),
    "polygamma": Row(lambda lib, x: [lib.polygamma(n, x) for n in (0, 1, 2)], ("positive",)),
    "mvlgamma": Row(lambda lib, x: (x + 1).mvlgamma(2), ("positive",)),
    "logaddexp": Row(lambda lib, x, y: lib.logaddexp(x, y), ("matrix", "matrix2")),
    "logaddexp far apart": Row(lambda lib, x, y: (x * 900).logaddexp(y), ("matrix", "vector")),
    "logaddexp2": Row(lambda lib, x, y: x.logaddexp2(y), ("matrix", "vector")),
    "hypot": Row(lambda lib, x, y: lib.hypot(x, y), ("matrix", "vector")),
    "copysign": Row(lambda lib, x, y: x.copysign(y.detach()), ("matrix", "matrix2")),
    "copysign number": Row(lambda lib, x: lib.copysign(x, -1.0)),
    "xlogy": Row(lambda lib, x, y: lib.xlogy(x, y), ("ties", "positive")),
    "xlog1py": Row(lambda lib, x, y: lib.special.xlog1py(x, y), ("ties", "positive")),
    "entr": Row(lambda lib, x: lib.special.entr(x), ("positive",)),
    "ndtr": Row(lambda lib, x: lib.special.ndtr(x)),
    "fmax": Row(lambda lib, x, y: lib.fmax(x, y), ("matrix", "matrix2")),
    "fmin": Row(lambda lib, x, y: x.fmin(y), ("matrix", "matrix2")),
    "float_power": Row(lambda lib, x: lib.float_power(x, 2.5), ("positive",)),
    "rsub": Row(lambda lib, x, y: lib.rsub(x, y, alpha=2), ("matrix", "matrix2")),
    "clamp tensors": Row(lambda lib, x, y: x.clamp(min=y).clamp(max=y + 1), ("ties", "vector")),
    "clamp at its bounds": Row(lambda lib, x: x.clamp(-1, 1), ("ties",)),
    "clamp_min": Row(lambda lib, x: lib.clamp_min(x, 0.1)),
    "clamp_max": Row(lambda lib, x: x.clamp_max(0.1)),
    "nan_to_num": Row(lambda lib, x: lib.nan_to_num(x, nan=2.0, neginf=-7.0), ("holes",)),
    "ldexp": Row(lambda lib, x: lib.ldexp(x, lib.tensor([3], **_place(lib)))),
    "round decimals": Row(lambda lib, x: x.round(decimals=2) + x),
    "lerp": Row(lambda lib, x, y: lib.lerp(x, y, 0.3), ("matrix", "matrix2")),
}


def _place(lib: Any) -> dict[str, str]:
    return {"device": "cpu"}


ORDER: dict[str, Row] = {
    "sort": Row(lambda lib, x: lib.sort(x, stable=True)),
    "sort descending": Row(lambda lib, x: x.sort(0, True)),
    "sort ties": Row(lambda lib, x: lib.sort(x, dim=-2, stable=True), ("ties cube",)),
    "sort ties descending": Row(
        lambda lib, x: x.sort(dim=1, descending=True, stable=True), ("ties",)
    ),
    "sort wide": Row(lambda lib, x: lib.sort(x, -1), ("wide",)),
    "sort scalar": Row(lambda lib, x: x.sort(), ("scalar",)),
    "sort transposed": Row(lambda lib, x: x.T.sort(-1)),
    "argsort": Row(lambda lib, x: (x.argsort(0), x)),
    "msort": Row(lambda lib, x: x.msort(), ("cube",)),
    "topk": Row(lambda lib, x: lib.topk(x, 3)),
    "topk smallest": Row(lambda lib, x: x.topk(2, 0, largest=False)),
    "topk of slice": Row(lambda lib, x: x[:, ::2].topk(4, 1)),
    "kthvalue": Row(lambda lib, x: lib.kthvalue(x, 3)),
    "kthvalue keepdim": Row(lambda lib, x: x.kthvalue(2, -2, True), ("cube",)),
    "median": Row(lambda lib, x: lib.median(x)),
    "median even": Row(lambda lib, x: x.median(-1), ("cube",)),
    "median keepdim": Row(lambda lib, x: lib.median(x, 0, True)),
    "nanmedian": Row(lambda lib, x: lib.nanmedian(x, 1).values, ("holes",)),
    "quantile": Row(lambda lib, x: lib.quantile(x, 0.3)),
    "quantile dim": Row(lambda lib, x: x.quantile(0.62, dim=1, keepdim=True)),
    "quantile vector": Row(
        lambda lib, x: x.quantile(lib.tensor([0.0, 0.4, 1.0], dtype=x.dtype, **_place(lib)), 0)
    ),
    **{
        f"quantile {how}": Row(lambda lib, x, how=how: x.quantile(0.37, 1, interpolation=how))
        for how in ("lower", "higher", "midpoint", "nearest")
    },
    "nanquantile": Row(lambda lib, x: lib.nanquantile(x, 0.4, 0), ("holes",)),
    "cummax": Row(lambda lib, x: lib.cummax(x, 1), ("ties",)),
    "cummin": Row(lambda lib, x: x.cummin(-2), ("ties",)),
    "logcumsumexp": Row(lambda lib, x: x.logcumsumexp(1)),
    "logcumsumexp wide": Row(lambda lib, x: lib.logcumsumexp(x, -1), ("wide",)),
    "cumprod": Row(lambda lib, x: x.cumprod(1), ("ties",)),
    "aminmax": Row(lambda lib, x: lib.aminmax(x, dim=1)),
    "aminmax all": Row(lambda lib, x: x.aminmax(), ("ties",)),
    "unique": Row(
        lambda lib, x: lib.unique(x.detach(), return_inverse=True, return_counts=True), ("ties",)
    ),
    "unique rows": Row(lambda lib, x: x.detach().unique(dim=0), ("ties cube",)),
    "unique_consecutive": Row(
        lambda lib, x: lib.unique_consecutive(x.detach(), True, True), ("ties",)
    ),
    "searchsorted": Row(lambda lib, s, x: lib.searchsorted(s, x), ("sorted", "matrix")),
    "searchsorted right": Row(
        lambda lib, s: lib.searchsorted(s, s, right=True, out_int32=True), ("sorted",)
    ),
    "bucketize": Row(lambda lib, x, s: lib.bucketize(x, s, right=True), ("matrix", "sorted")),
    "isin": Row(lambda lib, x: lib.isin(x, x[0]), ("ties",)),
    "isin number": Row(lambda lib, x: lib.isin(x, 1, invert=True), ("ties",)),
}

STATISTICS: dict[str, Row] = {
    "nansum": Row(lambda lib, x: lib.nansum(x, 1), ("holes",)),
    "nanmean": Row(lambda lib, x: x.nanmean(dim=(0, 1)), ("holes",)),
    "std_mean": Row(lambda lib, x: lib.std_mean(x, 0)),
    "cov": Row(lambda lib, x: lib.cov(x)),
    "cov weights": Row(
        lambda lib, x, c: x[:, :6].cov(correction=0, fweights=c), ("matrix", "counts")
    ),
    "corrcoef": Row(lambda lib, x: lib.corrcoef(x)),
    "dist": Row(lambda lib, x, y: lib.dist(x, y, 3), ("matrix", "matrix2")),
    "renorm": Row(lambda lib, x: lib.renorm(x, 2, 0, 2.0)),
    "trapezoid": Row(lambda lib, x, y: lib.trapezoid(x, y, dim=1), ("matrix", "matrix2")),
    "cumulative_trapezoid": Row(lambda lib, x: lib.cumulative_trapezoid(x, dx=0.5)),
    "gradient": Row(lambda lib, x: lib.gradient(x, spacing=0.5)),
    "gradient of order 2": Row(lambda lib, x: x.square() + lib.gradient(x, edge_order=2)[1]),
    "gradient by coordinates": Row(
        lambda lib, x, v: lib.gradient(x, spacing=(v.detach(),), dim=1, edge_order=2),
        ("matrix", "vector"),
    ),
    "diff": Row(lambda lib, x: lib.diff(x, 2, 0)),
    "diff prepend": Row(lambda lib, x: x.diff(prepend=x[:, :1])),
    "bincount": Row(lambda lib, c: lib.bincount(c, minlength=4), ("counts",)),
    "bincount weights": Row(lambda lib, c, x: c.bincount(x.detach()[:6]), ("counts", "vector")),
    "histc": Row(lambda lib, x: lib.histc(x.detach(), 7)),
    "histc range": Row(lambda lib, x: x.detach().histc(4, -1, 1)),
}

SHAPES: dict[str, Row] = {
    "tensor_split": Row(lambda lib, x: lib.tensor_split(x, 3, 1)),
    "tensor_split cuts": Row(lambda lib, x: x.tensor_split((1, 4, -1), dim=-1)),
    "hsplit": Row(lambda lib, x: lib.hsplit(x, (2, 3))),
    "vsplit": Row(lambda lib, x: x.vsplit(5)),
    "dsplit": Row(lambda lib, x: lib.dsplit(x, 2), ("cube",)),
    **{
        f"rot90 {k}": Row(lambda lib, x, k=k: lib.rot90(x, k, (0, -1)), ("cube",))
        for k in (-1, 0, 1, 2)
    },
    "fliplr": Row(lambda lib, x: lib.fliplr(x)),
    "flipud": Row(lambda lib, x: x.flipud()),
    "flip by name": Row(lambda lib, x: lib.flip(x, dims=(0, 1))),
    "block_diag": Row(lambda lib, x, v: lib.block_diag(x, v, x.T), ("matrix", "vector")),
    "broadcast_tensors": Row(lambda lib, x, v: lib.broadcast_tensors(x, v), ("matrix", "vector")),
    "atleast_1d": Row(lambda lib, s, v: lib.atleast_1d(s, v), ("scalar", "vector")),
    "atleast_2d": Row(lambda lib, s, v: lib.atleast_2d(s, v), ("scalar", "vector")),
    "atleast_3d": Row(lambda lib, s, v, x: lib.atleast_3d(s, v, x), ("scalar", "vector", "matrix")),
    "column_stack": Row(lambda lib, v, w: lib.column_stack((v, w)), ("vector", "other")),
    "dstack": Row(lambda lib, x, y: lib.dstack((x, y)), ("matrix", "matrix2")),
    "ravel": Row(lambda lib, x: lib.ravel(x.T)),
    "cartesian_prod": Row(lambda lib, v, w: lib.cartesian_prod(v, w[:2]), ("vector", "other")),
    "combinations": Row(lambda lib, v: lib.combinations(v, 3, True), ("vector",)),
    "vander": Row(lambda lib, v: lib.vander(v.detach(), 4), ("vector",)),
    "diag_embed": Row(lambda lib, x: lib.diag_embed(x, 1)),
    "diag_embed dims": Row(lambda lib, x: x.diag_embed(-2, 0, 2)),
    "diagflat": Row(lambda lib, x: lib.diagflat(x[:2, :2], -1)),
    "trace": Row(lambda lib, x: lib.trace(x)),
    "sum_to_size": Row(lambda lib, x: x.sum_to_size(3, 1), ("cube",)),
    "meshgrid xy": Row(lambda lib, v, w: lib.meshgrid(v, w, indexing="xy"), ("vector", "other")),
    "squeeze of a tuple": Row(lambda lib, x: x[:, None, :, None].squeeze((1, 3))),
    "repeat_interleave": Row(
        lambda lib, x: x.repeat_interleave(lib.tensor([0, 2, 1, 3, 1], **_place(lib)), dim=0)
    ),
    "unfold images": Row(
        lambda lib, x: _namespace(lib).unfold(x, (3, 2), dilation=(1, 2), padding=1, stride=2),
        ("image",),
    ),
    "fold": Row(
        lambda lib, x: _namespace(lib).fold(
            _namespace(lib).unfold(x, 3, padding=(1, 0)), (6, 5), (3, 3), padding=(1, 0)
        ),
        ("image",),
    ),
    **{
        f"pad {mode}": Row(
            lambda lib, x, mode=mode: _namespace(lib).pad(x, (2, 1, 1, 2), mode), ("image",)
        )
        for mode in ("constant", "reflect", "replicate", "circular")
    },
    "pad takes off and repeats": Row(
        lambda lib, x: _namespace(lib).pad(x, (-4, 5, 2, -3), "replicate"), ("image",)
    ),
    "linspace": Row(lambda lib: lib.linspace(-1, 2, 7, **_place(lib)), ()),
    "logspace": Row(lambda lib: lib.logspace(0, 2, 5, **_place(lib)), ()),
    **{
        f"{name}_window": Row(
            lambda lib, make=f"{name}_window": [
                getattr(lib, make)(length, periodic, dtype=lib.float64, **_place(lib))
                for length in (0, 1, 2, 5, 8)
                for periodic in (True, False)
            ],
            (),
        )
        for name in ("bartlett", "blackman", "hamming", "hann", "kaiser")
    },
    "windows of other shapes": Row(
        lambda lib: [
            lib.hamming_window(7, False, 0.6, 0.3, dtype=lib.float64, **_place(lib)),
            lib.kaiser_window(7, True, 3.0, dtype=lib.float64, **_place(lib)),
        ],
        (),
    ),
    "linspace of one": Row(lambda lib: lib.linspace(3, 5, 1, **_place(lib)), ()),
    "linspace integers": Row(
        lambda lib: lib.linspace(4.3, -3, 50, dtype=lib.int64, **_place(lib)), ()
    ),
    "tril_indices": Row(lambda lib: lib.tril_indices(4, 3, 1, **_place(lib)), ()),
    "triu_indices": Row(lambda lib: lib.triu_indices(3, 5, -1, **_place(lib)), ()),
}

WRITING: dict[str, Row] = {
    **{
        f"scatter_reduce {how} {own}": Row(
            lambda lib, x, i, y, how=how, own=own: lib.scatter_reduce(
                x, 0, i, y[:2], how, include_self=own
            ),
            ("ties", "index", "matrix2"),
        )
        for how in ("sum", "prod", "mean", "amax", "amin")
        for own in (True, False)
    },
    "scatter_reduce ties": Row(
        lambda lib, x, i: x.scatter_reduce(1, i[:, :3], x[:2, :3], "amax"), ("ties", "index")
    ),
    "index_reduce": Row(
        lambda lib, x, p, y: x.index_reduce(0, p, y[:4], "amin"), ("matrix", "places", "matrix2")
    ),
    "index_reduce mean": Row(
        lambda lib, x, p, y: x.index_reduce(1, p, y[:, :4], "mean", include_self=False),
        ("matrix", "places", "matrix2"),
    ),
    "index_put": Row(
        lambda lib, x, p, v: x.index_put((p[1:3], p[:2]), v[:2]), ("matrix", "places", "vector")
    ),
    "index_put accumulates": Row(
        lambda lib, x, p, v: x.index_put((p,), v, accumulate=True),
        ("matrix", "places", "vector"),
    ),
    "put": Row(lambda lib, x, p, v: x.put(p * 3, v[:4], True), ("matrix", "places", "vector")),
    "masked_scatter": Row(
        lambda lib, x, m, y: x.masked_scatter(m, y), ("matrix", "mask", "matrix2")
    ),
    "take_along_dim": Row(lambda lib, x: lib.take_along_dim(x, x.detach().argsort(1), dim=1)),
    "index_fill by tensor": Row(
        lambda lib, x, p, s: x.index_fill(1, p, s.detach()), ("matrix", "places", "scalar")
    ),
    "scatter add": Row(
        lambda lib, x, i, y: x.detach().scatter(0, i, y.detach(), reduce="add"),
        ("matrix", "index", "matrix2"),
    ),
    "select_scatter": Row(lambda lib, x, v: lib.select_scatter(x, v, 0, -2), ("matrix", "vector")),
    "slice_scatter": Row(
        lambda lib, x, y: x.slice_scatter(y[:, 1:4], 1, 0, 6, 2), ("matrix", "matrix2")
    ),
    "diagonal_scatter": Row(
        lambda lib, x, v: lib.diagonal_scatter(x, v[:5], 1), ("matrix", "vector")
    ),
    "argwhere": Row(lambda lib, m: lib.argwhere(m), ("mask",)),
    "nonzero as tuple": Row(lambda lib, m: m.nonzero(as_tuple=True), ("mask",)),
    "where numbers": Row(lambda lib, m: lib.where(m, 1.5, 0.5), ("mask",)),
    "where number": Row(lambda lib, m, x: lib.where(m, x, 0.0), ("mask", "matrix")),
    "unravel_index": Row(lambda lib, c: lib.unravel_index(c, (2, 5)), ("counts",)),
}

PRODUCTS: dict[str, Row] = {
    "baddbmm": Row(
        lambda lib, v, x, y: lib.baddbmm(v[:4], x, y.mT, beta=0.5, alpha=2),
        ("vector", "batch", "cube3"),
    ),
    "addbmm": Row(
        lambda lib, v, x, y: lib.addbmm(v[:4], x, y.mT, beta=2), ("vector", "batch", "cube3")
    ),
    "addmv": Row(
        lambda lib, v, x, w: lib.addmv(v[:5], x, w, alpha=3), ("vector", "matrix", "other")
    ),
    "addr": Row(lambda lib, x, v, w: x.addr(v[:5], w, beta=0.5), ("matrix", "vector", "other")),
    "inner": Row(lambda lib, x, y: lib.inner(x, y), ("matrix", "matrix2")),
    "vdot": Row(lambda lib, v, w: lib.vdot(v, w), ("vector", "other")),
    "vecdot": Row(lambda lib, x, y: lib.linalg.vecdot(x, y, dim=0), ("matrix", "matrix2")),
    "cross": Row(lambda lib, x, y: lib.cross(x, y, dim=1), ("cube", "cube2")),
    "linalg.cross": Row(lambda lib, x, y: lib.linalg.cross(x, y, dim=-2), ("cube", "cube2")),
    "tensordot": Row(lambda lib, x, y: lib.tensordot(x, y, 2), ("cube", "chain")),
    "tensordot dims": Row(
        lambda lib, x, y: lib.tensordot(x, y, ([0, 2], [0, 2])), ("cube", "cube2")
    ),
    "kron": Row(lambda lib, x, c: lib.kron(x[:2, :3], c), ("matrix", "cube")),
    "chain_matmul": Row(lambda lib, x, y: lib.linalg.multi_dot((x, y.T, x)), ("tall", "tall")),
    "multi_dot vectors": Row(
        lambda lib, v, x, w: lib.linalg.multi_dot((v[:5], x, w)), ("vector", "matrix", "other")
    ),
    **{
        f"cdist {p}": Row(lambda lib, x, y, p=p: lib.cdist(x, y, p), ("matrix", "matrix2"))
        for p in (1.0, 2.0, 3.5, float("inf"))
    },
    "pdist": Row(lambda lib, x: _namespace(lib).pdist(x)),
    "cosine_similarity": Row(
        lambda lib, x, y: _namespace(lib).cosine_similarity(x, y), ("matrix", "matrix2")
    ),
    "pairwise_distance": Row(
        lambda lib, x, y: _namespace(lib).pairwise_distance(x, y), ("matrix", "matrix2")
    ),
    "einsum of lists": Row(
        lambda lib, x, y: lib.einsum(x, [0, 1], y, [2, 1], [2, 0]), ("matrix", "matrix2")
    ),
    "einsum of lists and dots": Row(
        lambda lib, x, y: lib.einsum(x, [..., 3, 51], y, [..., 3, 2]), ("cube", "cube2")
    ),
    "spmm": Row(lambda lib, x, y: lib.spmm(x, y.T), ("matrix", "matrix2")),
    "einsum": Row(lambda lib, x, y: lib.einsum("ij,kj->ik", x, y), ("matrix", "matrix2")),
}
INPUTS["cube3"] = _numbers(2, 4, 3, seed=5)
INPUTS["chain"] = _numbers(3, 4, 5)

LINALG: dict[str, Row] = {
    "inv": Row(lambda lib, a: lib.linalg.inv(a), ("squares",)),
    "inverse": Row(lambda lib, a: a.inverse(), ("square",)),
    "solve": Row(lambda lib, a, b: lib.linalg.solve(a, b), ("square", "square2")),
    "solve vector": Row(lambda lib, a, v: lib.linalg.solve(a, v[:4]), ("square", "vector")),
    "solve right": Row(lambda lib, a, b: lib.linalg.solve(a, b, left=False), ("square", "square2")),
    "solve broadcast": Row(lambda lib, a, b: lib.linalg.solve(a, b[:3]), ("squares", "tall")),
    "solve_triangular": Row(
        lambda lib, a, b: lib.linalg.solve_triangular(a.triu(), b, upper=True),
        ("square", "square2"),
    ),
    "det": Row(lambda lib, a: lib.det(a), ("squares",)),
    "slogdet": Row(lambda lib, a: lib.linalg.slogdet(a), ("squares",)),
    "logdet": Row(lambda lib, a: lib.logdet(a), ("definite",)),
    "cholesky": Row(lambda lib, a: lib.linalg.cholesky(a @ a.mT), ("squares",)),
    "cholesky upper": Row(lambda lib, a: lib.linalg.cholesky(a @ a.mT, upper=True), ("square",)),
    "cholesky_solve": Row(lambda lib, b, a: lib.cholesky_solve(b, a.tril()), ("square2", "square")),
    "cholesky_inverse": Row(lambda lib, a: lib.cholesky_inverse(a.triu(), True), ("square",)),
    "qr": Row(lambda lib, a: lib.linalg.qr(a), ("tall",)),
    "qr flat": Row(lambda lib, a: lib.linalg.qr(a), ("flat",)),
    "qr square": Row(lambda lib, a: lib.linalg.qr(a), ("square",)),
    "svd": Row(
        lambda lib, a: _positive_signs(lib, *lib.linalg.svd(a, full_matrices=False)), ("tall",)
    ),
    "svd flat": Row(
        lambda lib, a: _positive_signs(lib, *lib.linalg.svd(a, full_matrices=False)), ("flat",)
    ),
    "svdvals": Row(lambda lib, a: lib.linalg.svdvals(a), ("squares",)),
    "eigh": Row(lambda lib, a: _positive_signs(lib, *lib.linalg.eigh(a @ a.mT)), ("square",)),
    "eigvalsh": Row(lambda lib, a: lib.linalg.eigvalsh(a + a.mT), ("squares",)),
    "lstsq": Row(lambda lib, a, v: lib.linalg.lstsq(a, v[:, :2])[0], ("tall", "tall")),
    "pinv": Row(lambda lib, a: lib.linalg.pinv(a), ("tall",)),
    "pinv flat": Row(lambda lib, a: lib.pinverse(a), ("flat",)),
    "matrix_power": Row(lambda lib, a: lib.linalg.matrix_power(a, 5), ("square",)),
    "matrix_power of the inverse": Row(lambda lib, a: a.matrix_power(-2), ("squares",)),
    "matrix_exp": Row(lambda lib, a: lib.matrix_exp(a / 4), ("squares",)),
    "matrix_rank": Row(lambda lib, a: lib.linalg.matrix_rank(a @ a.mT), ("tall",)),
    "cond": Row(lambda lib, a: [lib.linalg.cond(a), lib.linalg.cond(a, -2)], ("square",)),
    "with info": Row(
        lambda lib, a: [
            lib.linalg.inv_ex(a).inverse,
            lib.linalg.cholesky_ex(a @ a.mT).L,
            lib.linalg.inv_ex(a.detach()).info,
        ],
        ("squares",),
    ),
    "tensorinv": Row(lambda lib, a: lib.linalg.tensorinv(a.reshape(2, 2, 4)), ("square",)),
    "tensorsolve": Row(
        lambda lib, a, v: lib.linalg.tensorsolve(a.reshape(4, 2, 2), v[:4]),
        ("square", "vector"),
    ),
    **{
        f"vector_norm {p}": Row(
            lambda lib, x, p=p: lib.linalg.vector_norm(x, p, dim=1, keepdim=True)
        )
        for p in (1, 2, 3, 0.5, -2, float("inf"), -float("inf"))
    },
    **{
        f"matrix_norm {p}": Row(lambda lib, x, p=p: lib.linalg.matrix_norm(x, p), ("cube",))
        for p in ("fro", "nuc", 1, -1, 2, -2, float("inf"), -float("inf"))
    },
    "norm": Row(lambda lib, x: [lib.linalg.norm(x), lib.linalg.norm(x, 1), lib.linalg.norm(x[0])]),
    "norm nuc": Row(lambda lib, x: x.norm("nuc")),
}


def _complex(program: Program, inputs: tuple[str, str] = ("matrix", "matrix2")) -> Row:
    """A program of ``x + iy``; complex results are compared as pairs of real numbers."""

    def of_parts(lib: Any, x: Any, y: Any) -> Any:
        result = program(lib, lib.complex(x, y))
        results = result if isinstance(result, tuple | list) else [result]
        parts = (r.resolve_conj() if r.is_complex() else r for r in results)
        return [lib.view_as_real(r) if r.is_complex() else r for r in parts]

    return Row(of_parts, inputs)


def _windowed(lib: Any, x: Any) -> Any:
    return 0.6 - 0.4 * lib.cos(lib.arange(8, device=x.device).to(x.dtype) * 0.785)


COMPLEX: dict[str, Row] = {
    "complex arithmetic": _complex(lambda lib, z: (z * z.conj() + 2j) / (z - 1.5) ** 3),
    "complex functions": _complex(lambda lib, z: [z.exp(), z.log(), z.sqrt(), z.sin(), z.tanh()]),
    "complex power": _complex(lambda lib, z: [z**0.3, 2.0**z, z**z, z ** (1 + 2j), z**-2]),
    "complex parts": _complex(lambda lib, z: [z.real, z.imag, z.abs(), z.angle(), lib.sgn(z)]),
    "polar": Row(
        lambda lib, r, t: lib.view_as_real(lib.polar(r, t)), ("positive", "matrix")
    ),
    "view_as_complex": Row(lambda lib, x: lib.view_as_complex(x[:, :2].clone()).abs()),
    "complex written": _complex(lambda lib, z: _written(z)),
    "complex products": _complex(lambda lib, z: [z @ z.mH, lib.vdot(z[0], z[1]), z.T @ z.conj()]),
    "complex sums": _complex(lambda lib, z: [z.sum(0), z.mean(), z.prod(1), z.cumsum(0), z.norm()]),
    "complex shapes": _complex(
        lambda lib, z: [z.flip(0), lib.cat((z, z.T.reshape(z.shape))), z[[0, 3, 0]], z.roll(2, 1)]
    ),
    "complex where": _complex(lambda lib, z: lib.where(z.real > 0, z, z.conj() * 1j)),
    **{
        f"fft {name} {norm}": _complex(
            lambda lib, z, name=name, norm=norm: getattr(lib.fft, name)(z, norm=norm)
        )
        for name in ("fft", "ifft", "hfft", "irfft", "fft2", "ifft2", "irfft2", "fftn", "hfftn")
        for norm in ("backward", "ortho", "forward")
    },
    **{
        f"fft {name}": Row(
            lambda lib, x, name=name: lib.view_as_real(
                getattr(lib.fft, name)(x, norm="ortho").resolve_conj()
            ), ("cube",),
        )
        for name in ("rfft", "ihfft", "rfft2", "ihfft2", "rfftn", "ihfftn")
    },
    "fft sizes": _complex(lambda lib, z: [lib.fft.fft(z, 11, 0), lib.fft.irfft(z, 9), z]),
    "fft of several dims": _complex(lambda lib, z: lib.fft.fftn(z, (4, 9), (1, 0))),
    "fftshift": _complex(lambda lib, z: [lib.fft.fftshift(z), lib.fft.ifftshift(z, (1,))]),
    "stft": Row(
        lambda lib, x: lib.view_as_real(lib.stft(
            x[:, 0], 8, 3, window=_windowed(lib, x), normalized=True, return_complex=True
        )), ("wide",),
    ),
    "istft": Row(
        lambda lib, x: lib.istft(
            lib.stft(x[:, 0], 8, window=_windowed(lib, x), return_complex=True) * 2j,
            8, window=_windowed(lib, x), length=120,
        ), ("wide",),
    ),
}  # fmt: skip


def _written(z: Any) -> Any:
    """Parts written through views of a copy."""
    copy = z.clone()
    copy.real[0] = copy.imag[1] * 2
    copy[:, 1] *= 1j
    copy.imag.mul_(0.5)
    return copy


GRADUAL: dict[str, Row] = {
    **SPECIAL, **ORDER, **STATISTICS, **SHAPES, **WRITING, **PRODUCTS, **LINALG, **COMPLEX,
}  # fmt: skip

# Values alone: special values, integers, bools, empty tensors. No gradients.
EXACT: dict[str, Row] = {
    **{
        f"{name} of odd": Row(lambda lib, x, name=name: getattr(lib, name)(x), ("odd",))
        for name in (
            "isposinf",
            "isneginf",
            "isreal",
            "signbit",
            "sgn",
            "sign",
            "nan_to_num",
            "frexp",
            "erfc",
            "asinh",
            "sinc",
            "median",
            "nanmedian",
            "aminmax",
            "nansum",
            "nanmean",
        )
    },
    **{
        f"{name} of odds": Row(
            lambda lib, x, y, name=name: getattr(lib, name)(x, y), ("odd", "odd2")
        )
        for name in (
            "fmax",
            "fmin",
            "logaddexp",
            "logaddexp2",
            "hypot",
            "copysign",
            "heaviside",
            "xlogy",
            "nextafter",
            "isclose",
            "maximum",
            "float_power",
        )
    },
    "clamp by nan": Row(lambda lib, x, y: x.clamp(min=y), ("odd", "odd2")),
    "sort nan": Row(lambda lib, x: lib.sort(x, stable=True), ("odd",)),
    "sort nan descending": Row(lambda lib, x: x.sort(0, True), ("odd2",)),
    "cummax nan": Row(lambda lib, x: x.cummax(1), ("odd",)),
    "cummin nan": Row(lambda lib, x: x.cummin(0), ("odd2",)),
    "median nan": Row(lambda lib, x: x.median(1).values, ("holes",)),
    "quantile nan": Row(lambda lib, x: x.quantile(0.5, 0), ("holes",)),
    "sort integers": Row(lambda lib, x: x.sort(dim=1, stable=True), ("integers",)),
    "topk integers": Row(lambda lib, x: x.topk(3, 0).values, ("integers",)),
    "cummax integers": Row(lambda lib, x: x.cummax(1), ("integers",)),
    "mode": Row(lambda lib, x: x.mode(1).values, ("integers",)),
    "unique integers": Row(lambda lib, x: x.unique(return_counts=True), ("integers",)),
    "median integers": Row(lambda lib, x: x.median(), ("integers",)),
    "sort bools": Row(lambda lib, x: x.sort(dim=1, stable=True), ("mask",)),
    "diff bools": Row(lambda lib, x: x.diff(dim=0), ("mask",)),
    "left shift": Row(lambda lib, x, y: x << y, ("integers", "integers2")),
    "right shift": Row(lambda lib, x, y: x >> y, ("integers", "integers2")),
    "lgamma of integers": Row(lambda lib, x: x.lgamma(), ("integers2",)),
    "kron of integers": Row(lambda lib, x, y: lib.kron(x, y), ("integers", "integers2")),
    "tensordot of integers": Row(
        lambda lib, x, y: lib.tensordot(x, y, ([1], [1])), ("integers", "integers2")
    ),
    "scatter_reduce integers": Row(
        lambda lib, x, i, y: x.scatter_reduce(0, i, y, "amax", include_self=False),
        ("integers", "index", "integers2"),
    ),
    "sort empty": Row(lambda lib, x: x.sort(0), ("empty",)),
    "topk nothing": Row(lambda lib, x: x.topk(0, 1), ("matrix",)),
    "unique empty": Row(lambda lib, x: x.unique(), ("empty",)),
    "cummax empty": Row(lambda lib, x: x.cummax(1), ("empty",)),
    "tensor_split empty": Row(lambda lib, x: x.tensor_split(2), ("empty",)),
    "cdist empty": Row(lambda lib, x: lib.cdist(x, x), ("empty",)),
    "kron empty": Row(lambda lib, x, y: lib.kron(x, y), ("empty", "vector")),
    "nansum empty": Row(lambda lib, x: [x.nansum(), x.nansum(0)], ("empty",)),
    "inv empty": Row(lambda lib, x: lib.linalg.inv(x[:, :0]), ("empty",)),
    "det empty": Row(lambda lib, x: lib.linalg.det(x[:, :0]), ("empty",)),
    "any and all of bytes": Row(lambda lib, x: [x.any(0), x.all(), x.any()], ("bytes",)),
    "square of bools": Row(lambda lib, x: [x.square(), x.sign(), x.sgn()], ("mask",)),
    "isclose of bools": Row(lambda lib, x: lib.isclose(x, x.roll(1)), ("mask",)),
    "sum_to_size of bytes": Row(lambda lib, x: x.sum_to_size(1, 7), ("bytes",)),
    "ndtri of bytes": Row(lambda lib, x: lib.special.ndtri(x), ("bytes",)),
    "vander of integers": Row(lambda lib, x: lib.linalg.vander(x[0], N=3), ("integers",)),
    "arange in whole numbers": Row(
        lambda lib: [
            lib.arange(0.0, -8.000001, -4.0, dtype=kind, device="cpu")
            for kind in (lib.int64, lib.int32)
        ],
        (),
    ),
    "ravel scalar": Row(lambda lib, x: x.ravel(), ("scalar",)),
    "trace integers": Row(lambda lib, x: x.trace(), ("integers",)),
    "bincount empty": Row(lambda lib, c: lib.bincount(c[:0], minlength=2), ("counts",)),
}

# In place: each is run on a copy, which is then compared with what the call returned too.
IN_PLACE: dict[str, Row] = {
    **{
        f"{name}_": Row(lambda lib, x, name=name: getattr(x, f"{name}_")(), (kind,))
        for name, kind in {
            "asinh": "matrix",
            "atanh": "fraction",
            "erf": "matrix",
            "erfc": "matrix",
            "erfinv": "fraction",
            "lgamma": "positive",
            "digamma": "positive",
            "frac": "matrix",
            "sgn": "matrix",
            "sign": "matrix",
            "nan_to_num": "holes",
            "cos": "matrix",
            "tan": "matrix",
            "expm1": "matrix",
            "log1p": "positive",
            "log2": "positive",
            "reciprocal": "positive",
            "square": "matrix",
            "tril": "matrix",
            "t": "matrix",
            "squeeze": "wide",
            "deg2rad": "matrix",
            "sinc": "matrix",
        }.items()
    },
    "unsqueeze_": Row(lambda lib, x: x.unsqueeze_(1)),
    "transpose_": Row(lambda lib, x: x.transpose_(0, -1), ("cube",)),
    "unsqueeze_ then written": Row(lambda lib, x: x.unsqueeze_(0).add_(1)),
    "copysign_": Row(lambda lib, x, y: x.copysign_(y), ("matrix", "matrix2")),
    "clamp_min_": Row(lambda lib, x: x.clamp_min_(0.25)),
    "eq_": Row(lambda lib, x, y: x.eq_(y), ("ties", "ties")),
    "logical_not_": Row(lambda lib, x: x.logical_not_(), ("ties",)),
    "cumsum_": Row(lambda lib, x: x.cumsum_(1)),
    "scatter_reduce_": Row(
        lambda lib, x, i, y: x.scatter_reduce_(0, i, y, "prod"), ("matrix", "index", "matrix2")
    ),
    "index_put_": Row(
        lambda lib, x, p, v: x.index_put_((p,), v, accumulate=True),
        ("matrix", "places", "vector"),
    ),
    "put_": Row(lambda lib, x, p, v: x.put_(p, v[:4], True), ("matrix", "places", "vector")),
    "masked_scatter_": Row(
        lambda lib, x, m, y: x.masked_scatter_(m, y), ("matrix", "mask", "matrix2")
    ),
    "fill_diagonal_": Row(lambda lib, x: x.fill_diagonal_(9.0)),
    "fill_diagonal_ wrapped": Row(lambda lib, x: x.T.clone().fill_diagonal_(9.0, wrap=True)),
    "baddbmm_": Row(
        lambda lib, x, y: (x @ y.mT).baddbmm_(x, y.mT),
        ("batch", "cube3"),
    ),
    "addmv_": Row(lambda lib, v, x, w: v[:5].clone().addmv_(x, w), ("vector", "matrix", "other")),
}
