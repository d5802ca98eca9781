"""The less common methods of Tensor, by family; `Tensor` inherits them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tinygrad_cuda.core import dtypes, layouts
from tinygrad_cuda.tensors import (
    complex_numbers,
    distributions,
    legacy,
    math,
    ordering,
    quantiles,
    reductions,
    searching,
    shaping,
    special,
    spectrogram,
    statistics,
)
from tinygrad_cuda.tensors.indexing import writing
from tinygrad_cuda.tensors.linalg import decomposing, factorizing, products
from tinygrad_cuda.tensors.math import in_place

if TYPE_CHECKING:
    from tinygrad_cuda.tensors.tensor import Tensor


def _itself(self: Tensor) -> Tensor:
    """The tensor itself: there are no lazy signs or other layouts."""
    return self


def _no(self: Tensor) -> bool:
    """False: there is no such kind of tensor here."""
    return False


class FactMethods:
    """What a Tensor is; the questions about kinds that do not exist here have one answer."""

    __slots__ = ()

    resolve_conj = resolve_neg = to_dense = coalesce = _itself
    conj = conj_physical = complex_numbers.conj
    conj_physical_ = in_place(complex_numbers.conj)
    is_complex = complex_numbers.is_complex
    is_conj = is_neg = is_inference = _no
    layout = layouts.strided
    output_nr = 0
    names = None
    is_mps = is_xpu = is_sparse_csr = is_mkldnn = False
    is_sparse = is_quantized = is_nested = False
    real = property(
        complex_numbers.real,
        complex_numbers.set_real,
        doc="The real part, on the same memory; a real tensor itself.",
    )
    imag = property(
        complex_numbers.imag,
        complex_numbers.set_imag,
        doc="The imaginary part of complex numbers, on the same memory.",
    )
    itemsize = property(lambda self: self.element_size(), doc="Bytes of one element.")
    nbytes = property(lambda self: self.numel() * self.element_size(), doc="Bytes of all elements.")
    is_meta = property(lambda self: self.device.kind == "meta", doc="Whether it has no values.")
    is_cpu = property(lambda self: self.device.kind == "cpu", doc="Whether it lives on the host.")
    H = property(lambda self: self.T.conj(), doc="The conjugate transpose of a matrix.")
    mH = property(  # noqa: N815
        lambda self: self.mT.conj(), doc="The last two dimensions swapped, and conjugated."
    )
    retains_grad = property(
        lambda self: self._retained is not None, doc="Whether `retain_grad` was called."
    )

    def cfloat(self: Tensor) -> Tensor:  # type: ignore[misc]
        """The Tensor in complex64."""
        return self.to(dtypes.complex64)  # type: ignore[no-any-return]

    def cdouble(self: Tensor) -> Tensor:  # type: ignore[misc]
        """The Tensor in complex128."""
        return self.to(dtypes.complex128)  # type: ignore[no-any-return]

    def ndimension(self: Tensor) -> int:  # type: ignore[misc]
        """The number of dimensions."""
        return self.dim()

    def adjoint(self: Tensor) -> Tensor:  # type: ignore[misc]
        """The last two dimensions swapped, and conjugated."""
        return self.transpose(-2, -1).conj() if self.ndim else self.conj()

    def get_device(self: Tensor) -> int:  # type: ignore[misc]
        """The index of the device; -1 on cpu."""
        return self.device.index if self.device.kind == "cuda" else -1

    def is_signed(self: Tensor) -> bool:  # type: ignore[misc]
        """Whether the dtype has negative numbers."""
        return self.dtype.is_signed

    def is_nonzero(self: Tensor) -> bool:  # type: ignore[misc]
        """Whether the one element is not zero."""
        return bool(self)

    def is_same_size(self: Tensor, other: Tensor) -> bool:  # type: ignore[misc]
        """Whether the shapes are equal."""
        return self.node.shape == other.node.shape

    def type(self: Tensor, dtype: Any = None, non_blocking: bool = False) -> Any:  # type: ignore[misc]
        """The Tensor in another dtype or of a type such as `FloatTensor`; else its type's name."""
        if dtype is None:
            return legacy.type_of(self)
        kind = legacy.named(dtype)
        return self.to(dtype) if kind is None else self.to(kind[1], kind[0])

    def new_empty(self: Tensor, *size: Any, **options: Any) -> Tensor:  # type: ignore[misc]
        """`empty` with this Tensor's dtype and device."""
        return self.new_zeros(*size, **options)


class ElementwiseMethods:
    """Special functions and signs."""

    __slots__ = ()

    asinh = arcsinh = special.asinh
    acosh = arccosh = special.acosh
    atanh = arctanh = special.atanh
    erfc = special.erfc
    erfinv = special.erfinv
    lgamma = special.lgamma
    digamma = special.digamma
    mvlgamma = special.mvlgamma
    hypot = special.hypot
    copysign = special.copysign
    nextafter = special.nextafter
    logaddexp = special.logaddexp
    logaddexp2 = special.logaddexp2
    xlogy = special.xlogy
    logit = special.logit
    sinc = special.sinc
    frac = special.frac
    frexp = special.frexp
    ldexp = special.ldexp
    signbit = special.signbit
    sgn = special.sgn
    positive = special.positive
    heaviside = special.heaviside
    isposinf = special.isposinf
    isneginf = special.isneginf
    isreal = special.isreal
    nan_to_num = special.nan_to_num
    deg2rad = special.deg2rad
    rad2deg = special.rad2deg
    angle = special.angle
    fmax = special.fmax
    fmin = special.fmin
    i0 = special.i0
    igamma = special.igamma
    igammac = special.igammac
    gcd = special.gcd
    lcm = special.lcm
    float_power = special.float_power
    clamp_min = special.clamp_min
    clamp_max = special.clamp_max
    bitwise_left_shift = __lshift__ = special.bitwise_left_shift
    bitwise_right_shift = __rshift__ = special.bitwise_right_shift

    def polygamma(self, n: int) -> Tensor:
        """The n-th derivative of `digamma`; see `tc.polygamma`."""
        return special.polygamma(n, self)  # type: ignore[arg-type]

    def polygamma_(self: Tensor, n: int) -> Tensor:  # type: ignore[misc]
        """`polygamma` in place."""
        return math.store("polygamma_", self, special.polygamma(n, self).node)

    i0_ = in_place(special.i0)
    igamma_ = in_place(special.igamma)
    igammac_ = in_place(special.igammac)
    gcd_ = in_place(special.gcd)
    lcm_ = in_place(special.lcm)
    asinh_ = arcsinh_ = in_place(special.asinh)
    acosh_ = arccosh_ = in_place(special.acosh)
    atanh_ = arctanh_ = in_place(special.atanh)
    erf_ = in_place(math.erf)
    erfc_ = in_place(special.erfc)
    erfinv_ = in_place(special.erfinv)
    lgamma_ = in_place(special.lgamma)
    digamma_ = in_place(special.digamma)
    mvlgamma_ = in_place(special.mvlgamma)
    hypot_ = in_place(special.hypot)
    copysign_ = in_place(special.copysign)
    nextafter_ = in_place(special.nextafter)
    xlogy_ = in_place(special.xlogy)
    logit_ = special.logit_
    sinc_ = in_place(special.sinc)
    frac_ = in_place(special.frac)
    ldexp_ = in_place(special.ldexp)
    sgn_ = in_place(special.sgn)
    sign_ = in_place(math.sign)
    heaviside_ = in_place(special.heaviside)
    nan_to_num_ = in_place(special.nan_to_num)
    deg2rad_ = in_place(special.deg2rad)
    rad2deg_ = in_place(special.rad2deg)
    float_power_ = special.float_power_
    clamp_min_ = in_place(special.clamp_min)
    clamp_max_ = in_place(special.clamp_max)
    bitwise_left_shift_ = __ilshift__ = in_place(special.bitwise_left_shift)
    bitwise_right_shift_ = __irshift__ = in_place(special.bitwise_right_shift)
    acos_ = arccos_ = in_place(math.acos)
    asin_ = arcsin_ = in_place(math.asin)
    atan_ = arctan_ = in_place(math.atan)
    atan2_ = arctan2_ = in_place(math.atan2)
    cos_ = in_place(math.cos)
    cosh_ = in_place(math.cosh)
    sin_ = in_place(math.sin)
    sinh_ = in_place(math.sinh)
    tan_ = in_place(math.tan)
    exp2_ = in_place(math.exp2)
    expm1_ = in_place(math.expm1)
    log1p_ = in_place(math.log1p)
    log2_ = in_place(math.log2)
    log10_ = in_place(math.log10)
    reciprocal_ = in_place(math.reciprocal)
    square_ = in_place(math.square)
    fmod_ = in_place(math.fmod)
    fix_ = in_place(math.trunc)
    absolute_ = in_place(math.abs)
    negative_ = in_place(math.neg)
    bitwise_not_ = in_place(math.bitwise_not)
    logical_and_ = in_place(math.logical_and)
    logical_or_ = in_place(math.logical_or)
    logical_xor_ = in_place(math.logical_xor)
    logical_not_ = in_place(math.logical_not)
    eq_ = in_place(math.eq)
    ne_ = not_equal_ = in_place(math.ne)
    lt_ = less_ = in_place(math.lt)
    le_ = less_equal_ = in_place(math.le)
    gt_ = greater_ = in_place(math.gt)
    ge_ = greater_equal_ = in_place(math.ge)
    subtract_ = in_place(math.sub)
    multiply_ = in_place(math.mul)
    divide_ = true_divide_ = in_place(math.div)
    cumsum_ = in_place(reductions.cumsum)
    cumprod_ = in_place(reductions.cumprod)


class OrderMethods:
    """Order, counts and statistics."""

    __slots__ = ()

    sort = ordering.sort
    argsort = ordering.argsort
    msort = ordering.msort
    topk = ordering.topk
    kthvalue = ordering.kthvalue
    median = quantiles.median
    nanmedian = quantiles.nanmedian
    mode = quantiles.mode
    quantile = quantiles.quantile
    nanquantile = quantiles.nanquantile
    cummax = ordering.cummax
    cummin = ordering.cummin
    logcumsumexp = statistics.logcumsumexp
    unique = searching.unique
    unique_consecutive = searching.unique_consecutive
    aminmax = statistics.aminmax
    nansum = statistics.nansum
    nanmean = statistics.nanmean
    cov = statistics.cov
    corrcoef = statistics.corrcoef
    dist = statistics.dist
    renorm = statistics.renorm
    renorm_ = in_place(statistics.renorm)
    bincount = statistics.bincount
    histc = statistics.histc
    histogram = statistics.histogram
    diff = shaping.diff


class ShapeMethods:
    """Shapes and diagonals."""

    __slots__ = ()

    as_strided = shaping.as_strided
    as_strided_ = shaping.as_strided_
    as_strided_scatter = shaping.as_strided_scatter
    new_empty_strided = shaping.new_empty_strided
    storage_offset = shaping.storage_offset
    narrow_copy = shaping.narrow_copy
    resize_ = shaping.resize_
    resize_as_ = shaping.resize_as_
    tensor_split = shaping.tensor_split
    hsplit = shaping.hsplit
    vsplit = shaping.vsplit
    dsplit = shaping.dsplit
    unsafe_chunk = shaping.chunk
    unsafe_split = shaping.split
    unsafe_split_with_sizes = shaping.split_with_sizes
    split_with_sizes = shaping.split_with_sizes
    fliplr = shaping.fliplr
    flipud = shaping.flipud
    rot90 = shaping.rot90
    ravel = shaping.ravel
    diag_embed = shaping.diag_embed
    diagflat = shaping.diagflat
    trace = shaping.trace
    sum_to_size = shaping.sum_to_size
    squeeze_ = shaping.squeeze_
    unsqueeze_ = shaping.unsqueeze_
    transpose_ = swapaxes_ = swapdims_ = shaping.transpose_
    t_ = shaping.t_
    tril_ = in_place(shaping.tril)
    triu_ = in_place(shaping.triu)
    fill_diagonal_ = shaping.fill_diagonal_


class WritingMethods:
    """Writing at chosen positions, and draws."""

    __slots__ = ()

    argwhere = writing.argwhere
    nonzero_static = writing.nonzero_static
    scatter_reduce = writing.scatter_reduce
    scatter_reduce_ = in_place(writing.scatter_reduce)
    index_reduce = writing.index_reduce
    index_reduce_ = in_place(writing.index_reduce)
    index_put = writing.index_put
    index_put_ = writing.index_put_
    put = writing.put
    put_ = writing.put_
    masked_scatter = writing.masked_scatter
    masked_scatter_ = in_place(writing.masked_scatter)
    select_scatter = writing.select_scatter
    slice_scatter = writing.slice_scatter
    diagonal_scatter = writing.diagonal_scatter
    multinomial = distributions.multinomial
    exponential_ = distributions.exponential_
    geometric_ = distributions.geometric_
    log_normal_ = distributions.log_normal_
    cauchy_ = distributions.cauchy_
    random_ = distributions.random_

    def bernoulli(self, p: Any = None, *, generator: Any = None) -> Tensor:
        """1 with probability `p`, or that of each element, else 0."""
        return distributions.bernoulli(self, p, generator=generator)  # type: ignore[arg-type]


class ProductMethods:
    """Products, factorizations and transforms."""

    __slots__ = ()

    stft = spectrogram.stft
    istft = spectrogram.istft
    baddbmm = products.baddbmm
    baddbmm_ = in_place(products.baddbmm)
    addmm_ = in_place(products.addmm)
    addbmm = products.addbmm
    addbmm_ = in_place(products.addbmm)
    addmv = products.addmv
    addmv_ = in_place(products.addmv)
    addr = products.addr
    addr_ = in_place(products.addr)
    vdot = products.vdot
    inner = products.inner
    ger = products.ger
    cross = products.cross
    kron = products.kron
    inverse = factorizing.inv
    det = factorizing.det
    slogdet = factorizing.slogdet
    logdet = factorizing.logdet
    cholesky_inverse = factorizing.cholesky_inverse
    cholesky_solve = factorizing.cholesky_solve
    pinverse = factorizing.pinv
    matrix_power = factorizing.matrix_power
    matrix_exp = factorizing.matrix_exp
    lu = decomposing.lu_packed
    lu_solve = decomposing.lu_solve_of
    geqrf = decomposing.geqrf
    orgqr = decomposing.householder_product
    ormqr = decomposing.ormqr
    triangular_solve = decomposing.triangular_solve

    cholesky = factorizing.cholesky_of
    qr = factorizing.qr_of
    svd = factorizing.svd_v
