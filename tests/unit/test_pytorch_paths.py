"""Import paths that PyTorch programs use, and the names behind them, beside torch's."""

from __future__ import annotations

import dataclasses
import importlib
import io
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda.backend import registry
from tinygrad_cuda.core.device import as_device
from tinygrad_cuda.utils.compare_recorder import aliased

torch = pytest.importorskip("torch")

PATHS = """
_utils: _flatten_dense_tensors _unflatten_dense_tensors _take_tensors
autograd.function: Function FunctionCtx once_differentiable
autograd.functional: jacobian hessian vjp jvp
autograd.grad_mode: no_grad enable_grad set_grad_enabled inference_mode
autograd.gradcheck: gradcheck gradgradcheck GradcheckError
distributions.utils: broadcast_all logits_to_probs probs_to_logits clamp_probs lazy_property
futures: Future collect_all wait_all
nn.attention.flex_attention: flex_attention create_block_mask create_mask BlockMask AuxRequest
nn.attention.flex_attention: and_masks or_masks noop_mask AuxOutput
nn._reduction: get_enum legacy_get_string
nn.functional: _pair _single _triple _get_softmax_dim _in_projection _in_projection_packed
nn.functional: _canonical_mask _none_or_dtype _verify_batch_size _list_with_default _mha_shape_check
nn.functional: GRID_SAMPLE_INTERPOLATION_MODES GRID_SAMPLE_PADDING_MODES
nn.grad: conv1d_input conv1d_weight conv2d_input conv2d_weight conv3d_input conv3d_weight
nn.init: _calculate_correct_fan _calculate_fan_in_and_fan_out _no_grad_normal_ _no_grad_zero_
nn.modules.batchnorm: _BatchNorm _NormBase
nn.modules.conv: _ConvNd _ConvTransposeNd
nn.modules.dropout: _DropoutNd
nn.modules.linear: NonDynamicallyQuantizableLinear
nn.modules.loss: _Loss _WeightedLoss
nn.modules.padding: _ConstantPadNd _ReflectionPadNd _ReplicationPadNd _CircularPadNd
nn.modules.pooling: _MaxPoolNd _AvgPoolNd _AdaptiveAvgPoolNd _AdaptiveMaxPoolNd _LPPoolNd
nn.modules.transformer: _get_clones _get_activation_fn _generate_square_subsequent_mask
nn.modules.utils: _pair _single _triple _quadruple _ntuple _list_with_default
nn.parallel._functions: Broadcast ReduceAddCoalesced Scatter Gather
nn.parallel.data_parallel: DataParallel data_parallel
nn.parallel.distributed: DistributedDataParallel
nn.parallel.parallel_apply: parallel_apply
nn.parallel.replicate: replicate
nn.parallel.scatter_gather: scatter gather
nn.utils.clip_grad: clip_grad_norm_ clip_grad_value_
nn.utils.convert_parameters: parameters_to_vector vector_to_parameters
nn.utils.fusion: fuse_conv_bn_eval fuse_conv_bn_weights fuse_linear_bn_weights
nn.utils.init: skip_init
nn.utils.parametrize: register_parametrization is_parametrized
nn.utils.prune: l1_unstructured
nn.utils.rnn: pad_sequence pack_padded_sequence invert_permutation
nn.utils.spectral_norm: spectral_norm remove_spectral_norm
nn.utils.stateless: functional_call
nn.utils.weight_norm: weight_norm remove_weight_norm
optim.lr_scheduler: LRScheduler _LRScheduler
optim.optimizer: Optimizer ParamsT required
overrides: is_tensor_like has_torch_function handle_torch_function wrap_torch_function
serialization: load save add_safe_globals safe_globals LoadEndianness
testing: assert_close make_tensor
types: Number Device
utils.checkpoint: checkpoint checkpoint_sequential
utils.cpp_extension: load load_inline CUDAExtension CppExtension BuildExtension CUDA_HOME
utils.data._utils.collate: default_collate default_convert
utils.data._utils.worker: get_worker_info WorkerInfo
utils.data.dataloader: DataLoader default_collate get_worker_info
utils.data.dataset: Dataset StackDataset Subset random_split
utils.data.sampler: Sampler BatchSampler
utils.hooks: RemovableHandle
utils.model_zoo: load_url
"""


@pytest.mark.parametrize("line", PATHS.strip().splitlines())
def test_imports(line: str) -> None:
    module, names = line.split(": ")
    for package in ("torch", "tinygrad_cuda"):
        found = importlib.import_module(f"{package}.{module}")
        assert [name for name in names.split() if not hasattr(found, name)] == []


def test_imports_under_the_name_of_torch() -> None:
    """As `compare` runs a script, and anybody who has `torch` stand for this package."""
    with aliased("tinygrad_cuda"):
        for line in PATHS.strip().splitlines():
            module, names = line.split(": ")
            found = importlib.import_module(f"torch.{module}")
            assert [name for name in names.split() if not hasattr(found, name)] == [], module
            assert found is importlib.import_module(f"tinygrad_cuda.{module}")


def test_modules_with_the_names_of_functions() -> None:
    """As in PyTorch, the attribute is the function."""
    for lib in (tc, torch):
        importlib.import_module(f"{lib.__name__}.nn.utils.weight_norm")
        importlib.import_module(f"{lib.__name__}.nn.parallel.data_parallel")
        for function in (lib.nn.utils.weight_norm, lib.nn.parallel.data_parallel):
            assert callable(function)


def test_classes_of_layers_are_their_bases() -> None:
    for lib in (tc, torch):
        nn, modules = lib.nn, importlib.import_module(f"{lib.__name__}.nn.modules")
        assert issubclass(nn.ZeroPad2d, modules.padding._ConstantPadNd)
        assert issubclass(nn.AdaptiveAvgPool2d, modules.pooling._AdaptiveAvgPoolNd)
        assert not issubclass(nn.AdaptiveMaxPool2d, modules.pooling._AdaptiveAvgPoolNd)
        assert issubclass(nn.AvgPool3d, modules.pooling._AvgPoolNd)
        assert issubclass(nn.ConvTranspose2d, modules.conv._ConvTransposeNd)
        assert not issubclass(nn.Conv2d, modules.conv._ConvTransposeNd)
        assert repr(nn.ZeroPad2d(1)) == "ZeroPad2d((1, 1, 1, 1))"


# Values beside torch's ----------------------------------------------------------------------------


def both(program: Callable[[Any], Any]) -> None:
    """A program gives the same values with either package."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours, theirs = (_plain(program(lib)) for lib in (tc, torch))
    compare(ours, theirs)


def _plain(value: Any) -> Any:
    if hasattr(value, "detach"):
        return value.detach().numpy()
    return type(value)(map(_plain, value)) if isinstance(value, tuple | list) else value


def compare(ours: Any, theirs: Any) -> None:
    if isinstance(theirs, tuple | list):
        assert len(ours) == len(theirs)
        for pair in zip(ours, theirs):
            compare(*pair)
    elif isinstance(theirs, np.ndarray):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    else:
        assert ours == theirs


def values(lib: Any, *shape: int) -> Any:
    data = np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)
    return lib.tensor(data)


def _utils(lib: Any) -> Any:
    return importlib.import_module(f"{lib.__name__}.distributions.utils")


PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "broadcast_all": lambda lib: _utils(lib).broadcast_all(values(lib, 2, 3), 1, values(lib, 3)),
    "broadcast_all of numbers": lambda lib: _utils(lib).broadcast_all(1, 2.0),
    "broadcast_all of float64": lambda lib: _utils(lib).broadcast_all(
        lib.ones(2, dtype=lib.float64), 3
    ),
    "logits_to_probs": lambda lib: [
        _utils(lib).logits_to_probs(values(lib, 2, 3), b) for b in (False, True)
    ],
    "probs_to_logits": lambda lib: [
        _utils(lib).probs_to_logits(lib.tensor([0.0, 0.25, 1.0]), b) for b in (False, True)
    ],
    "clamp_probs": lambda lib: [
        _utils(lib).clamp_probs(lib.tensor([0.0, 0.5, 1.0], dtype=t))
        for t in (lib.float32, lib.float64)
    ],
    "tril_matrix_to_vec": lambda lib: [
        _utils(lib).tril_matrix_to_vec(values(lib, 2, 3, 3), diag) for diag in (-2, -1, 0, 1, 2)
    ],
    "vec_to_tril_matrix": lambda lib: [
        _utils(lib).vec_to_tril_matrix(values(lib, 2, size), diag)
        for size, diag in ((6, 0), (3, -1), (8, 1))
    ],
    "in projections": lambda lib: [
        *lib.nn.functional._in_projection_packed(
            *[values(lib, 5, 2, 4)] * 3, values(lib, 12, 4), values(lib, 12)
        ),
        *lib.nn.functional._in_projection(*[values(lib, 5, 2, 4)] * 3, *[values(lib, 4, 4)] * 3),
    ],
    "canonical masks": lambda lib: [
        lib.nn.functional._canonical_mask(mask, "mask", None, "", lib.float32)
        for mask in (lib.tensor([True, False]), values(lib, 2), None)
    ],
    "tuples": lambda lib: [
        lib.nn.functional._pair(2), lib.nn.functional._triple((1, 2, 3)),
        lib.nn.functional._list_with_default([None, 3], [4, 5, 6]),
        lib.nn.functional._list_with_default(7, [4]),
        lib.nn.functional._get_softmax_dim("softmax", 3, 1),
        lib.nn.functional._get_softmax_dim("softmax", 2, 1),
        lib.nn.functional._mha_shape_check(*[values(lib, 5, 2, 4)] * 3, None, None, 2),
        lib.nn.functional._mha_shape_check(*[values(lib, 5, 4)] * 3, None, None, 2),
    ],
    "reductions": lambda lib: [
        *map(importlib.import_module(f"{lib.__name__}.nn._reduction").get_enum,
             ("none", "mean", "sum")),
        importlib.import_module(f"{lib.__name__}.nn._reduction").legacy_get_string(
            None, False, emit_warning=False),
    ],
    "correct fan": lambda lib: [
        lib.nn.init._calculate_correct_fan(values(lib, 4, 3, 2, 2), mode)
        for mode in ("fan_in", "fan_out")
    ],
    "fused weights": lambda lib: [
        *importlib.import_module(f"{lib.__name__}.nn.utils.fusion").fuse_conv_bn_weights(
            lib.nn.Parameter(values(lib, 2, 3, 1, 1)), None, values(lib, 2), lib.ones(2), 1e-3,
            values(lib, 2), None),
        *importlib.import_module(f"{lib.__name__}.nn.utils.fusion").fuse_conv_bn_weights(
            lib.nn.Parameter(values(lib, 3, 2, 1, 1)), lib.nn.Parameter(values(lib, 2)),
            values(lib, 2), lib.ones(2), 1e-3, None, values(lib, 2), transpose=True),
        *importlib.import_module(f"{lib.__name__}.nn.utils.fusion").fuse_linear_bn_weights(
            lib.nn.Parameter(values(lib, 2, 3)), lib.nn.Parameter(values(lib, 2)), values(lib, 2),
            lib.ones(2), 1e-3, values(lib, 2), values(lib, 2)),
    ],
    "invert_permutation": lambda lib: lib.nn.utils.rnn.invert_permutation(lib.tensor([2, 0, 1])),
    "default_convert": lambda lib: importlib.import_module(
        f"{lib.__name__}.utils.data._utils.collate"
    ).default_convert([np.arange(3), (1, "a"), 2.5, np.float32(2)]),
    "StackDataset": lambda lib: [
        lib.utils.data.StackDataset([1, 2], "ab")[1], len(lib.utils.data.StackDataset(a=[1, 2])),
        list(lib.utils.data.StackDataset(a=[1, 2], b=[3, 4])[0].items()),
        next(iter(lib.utils.data.DataLoader(lib.utils.data.StackDataset([1, 2], [3, 4]), 2))),
    ],
    "parallel_apply": lambda lib: importlib.import_module(
        f"{lib.__name__}.nn.parallel.parallel_apply"
    ).parallel_apply([lib.exp, lib.sqrt], [(lib.ones(2),), (lib.ones(2),)]) if lib is tc else [
        lib.exp(lib.ones(2)), lib.sqrt(lib.ones(2))
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_values(name: str) -> None:
    both(PROGRAMS[name])


CONVS = [(1, {}), (2, {"stride": 2, "padding": 1}), (2, {"dilation": 2, "groups": 2}),
         (2, {"stride": (2, 1), "padding": (0, 1)}), (3, {"padding": 1, "groups": 2})]  # fmt: skip


@pytest.mark.parametrize("device", ["cpu", "emu"])
@pytest.mark.parametrize(("rank", "options"), CONVS)
def test_gradients_of_convolutions(rank: int, options: dict[str, Any], device: str) -> None:
    """Both, their own gradients, and that they have none without a need."""
    try:
        registry.get(as_device(device))
    except tc.DeviceError as error:
        pytest.skip(str(error))

    def program(lib: Any) -> list[Any]:
        module = importlib.import_module(f"{lib.__name__}.nn.grad")
        place = {"device": device if lib is tc else "cpu"}
        x, w = values(lib, 2, 4, *[5] * rank), values(lib, 6, 4 // options.get("groups", 1),
                                                      *[2] * rank)  # fmt: skip
        x, w = x.to(**place), w.to(**place)
        y = getattr(lib.nn.functional, f"conv{rank}d")(x, w, **options)
        g = values(lib, *y.shape).to(**place)
        by_input = getattr(module, f"conv{rank}d_input")(x.shape, w, g, **options)
        by_weight = getattr(module, f"conv{rank}d_weight")(x, w.shape, g, **options)
        assert not by_input.requires_grad
        assert not by_weight.requires_grad
        g.requires_grad_()
        again = getattr(module, f"conv{rank}d_weight")(x, w.shape, g, **options)
        (second,) = lib.autograd.grad((again * again).sum(), g)
        return [part.cpu() for part in (by_input, by_weight, second / 100)]

    ours, theirs = (_plain(program(lib)) for lib in (tc, torch))
    for a, b in zip(ours, theirs):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_fused_biases_require_grad_where_there_was_one() -> None:
    for lib in (tc, torch):
        fuse = importlib.import_module(f"{lib.__name__}.nn.utils.fusion").fuse_linear_bn_weights
        norm = lib.ones(2), lib.ones(2), 0.1, lib.ones(2), lib.ones(2)
        for bias in (None, lib.nn.Parameter(lib.ones(2))):
            made = fuse(lib.nn.Parameter(lib.ones(2, 3)), bias, *norm)
            assert [part.requires_grad for part in made] == [True, bias is not None]


def test_lazy_property() -> None:
    for lib in (tc, torch):
        calls = []

        class Thing:
            @_utils(lib).lazy_property
            def value(self, calls: list[int] = calls) -> int:
                """What it says."""
                calls.append(1)
                return 3

        thing = Thing()
        assert (thing.value, thing.value, len(calls)) == (3, 3, 1)


def test_errors_beside_torch() -> None:
    for lib in (tc, torch):
        for broken in (
            lambda lib=lib: _utils(lib).broadcast_all("a"),
            lambda lib=lib: lib.utils.data.StackDataset(),
            lambda lib=lib: lib.utils.data.StackDataset([1], a=[1]),
            lambda lib=lib: lib.utils.data.StackDataset([1], [1, 2]),
            lambda lib=lib: lib.nn.functional._verify_batch_size([1, 3]),
            lambda lib=lib: lib.nn.functional._list_with_default([1, 2], [3]),
            lambda lib=lib: lib.testing.make_tensor(
                2, dtype=lib.int32, device="cpu", low=3, high=2),
            lambda lib=lib: lib.testing.make_tensor(
                2, dtype=lib.int32, device="cpu", requires_grad=True),
        ):  # fmt: skip
            with pytest.raises((ValueError, RuntimeError, tc.TgcError)):
                broken()


DTYPES = ["bool", "uint8", "int8", "int32", "int64", "float16", "float32", "float64", "complex64"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_make_tensor(dtype: str) -> None:
    for lib in (tc, torch):
        kind, make = getattr(lib, dtype), lib.testing.make_tensor
        x = make(50, 40, dtype=kind, device="cpu")
        assert (tuple(x.shape), x.dtype) == ((50, 40), kind)
        array = np.asarray(x.numpy())
        if dtype not in ("bool", "complex64"):
            least = 0 if dtype == "uint8" else -9
            assert least <= array.min() < least + 1
            assert 8 < array.max() <= 9
        assert (make((50,), dtype=kind, device="cpu", exclude_zero=True) != 0).all()
        strided = make(3, 4, dtype=kind, device="cpu", noncontiguous=True)
        assert not strided.is_contiguous()
    if dtype != "bool":
        small = tc.testing.make_tensor(2000, dtype=getattr(tc, dtype), device="cpu", low=2, high=4)
        parts = [small.real, small.imag] if dtype == "complex64" else [small]
        assert all(bool(((part >= 2) & (part <= 4)).all()) for part in parts)


class Duck:
    """Takes part in functions that ask for it."""

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return "quack" if function.__name__ == "wrapped" else NotImplemented


def test_overrides() -> None:
    for lib in (tc, torch):
        overrides = importlib.import_module(f"{lib.__name__}.overrides")
        x = lib.ones(1)
        assert [overrides.is_tensor_like(thing) for thing in (x, Duck(), 1.0)] == [
            True,
            True,
            False,
        ]
        assert not overrides.has_torch_function((x, 1))
        assert overrides.has_torch_function((x, Duck()))

        @overrides.wrap_torch_function(lambda a: (a,))
        def wrapped(a: Any) -> Any:
            return a + a

        assert wrapped(Duck()) == "quack"
        assert wrapped(2) == 4
        with pytest.raises(TypeError if lib is torch else tc.ArgumentError):
            overrides.handle_torch_function(len, (Duck(),), Duck())
        assert overrides.is_tensor_method_or_property(lib.Tensor.add)
        assert not overrides.is_tensor_method_or_property(len)
    with pytest.raises(tc.UnknownNameError):
        importlib.import_module("tinygrad_cuda.overrides").TorchFunctionMode  # noqa: B018


@dataclasses.dataclass
class Options:
    """A class of a program."""

    rate: float


def test_safe_globals() -> None:
    """A file with a class of the program is refused, unless the class was named."""
    file = io.BytesIO()
    tc.save({"options": Options(0.5)}, file)

    def loaded() -> Any:
        file.seek(0)
        return tc.load(file)

    with pytest.raises(tc.DataError, match="Options"):
        loaded()
    with tc.serialization.safe_globals([Options]):
        assert loaded()["options"] == Options(0.5)
        assert tc.serialization.get_safe_globals() == [Options]
    with pytest.raises(tc.DataError, match="Options"):
        loaded()
    tc.serialization.add_safe_globals([Options])
    assert loaded()["options"].rate == 0.5
    tc.serialization.clear_safe_globals()
    assert tc.serialization.get_safe_globals() == []
    with pytest.raises(tc.ArgumentError):
        tc.serialization.add_safe_globals([1])


def test_endianness_of_old_files() -> None:
    """Of a file of torch.save without a record that says it."""
    import zipfile

    written = io.BytesIO()
    torch.save({"x": torch.tensor([1, 256], dtype=torch.int16)}, written)
    old = io.BytesIO()
    with zipfile.ZipFile(written) as source, zipfile.ZipFile(old, "w") as target:
        for name in source.namelist():
            if not name.endswith("byteorder"):
                target.writestr(zipfile.ZipInfo(name), source.read(name))
    kinds = tc.serialization.LoadEndianness
    wanted = {None: [1, 256], kinds.LITTLE: [1, 256], kinds.BIG: [256, 1]}
    try:
        for kind, numbers in wanted.items():
            tc.serialization.set_default_load_endianness(kind)
            assert tc.serialization.get_default_load_endianness() is kind
            old.seek(0)
            assert tc.load(old)["x"].tolist() == numbers
    finally:
        tc.serialization.set_default_load_endianness(None)
    with pytest.raises(tc.ArgumentError):
        tc.serialization.set_default_load_endianness("big")  # type: ignore[arg-type]


def test_what_is_refused() -> None:
    extension = importlib.import_module("tinygrad_cuda.utils.cpp_extension")
    for name in ("load", "load_inline", "CppExtension", "CUDAExtension", "BuildExtension"):
        with pytest.raises(tc.ArgumentError, match="RawKernel"):
            getattr(extension, name)(name="a", sources=["a.cu"])
    with pytest.raises(tc.UnknownNameError, match="no compiled half"):
        tc._C._get_tracing_state()
    assert not hasattr(tc._C, "_jit_set_profiling_mode")


def test_one_device() -> None:
    network = tc.nn.Linear(2, 2, device="cpu")
    assert tc.nn.parallel.replicate(network, ["cpu"]) == [network]
    (moved,) = tc.nn.parallel.scatter((tc.ones(2), 3), ["cpu"])
    assert moved[0].tolist() == [1.0, 1.0]
    assert moved[1] == 3
    joined = tc.nn.parallel.gather([{"a": tc.ones(1)}, {"a": tc.zeros(2)}], "cpu")
    assert joined["a"].tolist() == [1.0, 0.0, 0.0]
    for call in (tc.nn.parallel.replicate, tc.nn.parallel.scatter):
        with pytest.raises(tc.ArgumentError):
            call(network, ["cuda:0", "cuda:1"])
    with pytest.raises(tc.ArgumentError):
        tc.nn.parallel.parallel_apply([network], [])


def test_many_tensors_as_one_vector() -> None:
    def run(library: Any) -> list[Any]:
        u = importlib.import_module(f"{library.__name__}._utils")
        parts = [library.arange(6.0).reshape(2, 3), library.ones(0, 2), library.tensor(7.0)]
        flat = u._flatten_dense_tensors(parts).requires_grad_()
        back = u._unflatten_dense_tensors(flat, parts)
        (back[0] * 2).sum().backward()
        wholes = [library.ones(3), library.ones(2).double(), library.ones(4), library.ones(2)]
        groups = [[len(x) for x in group] for group in u._take_tensors(wholes, 24)]
        return [flat.tolist(), [x.tolist() for x in back], flat.grad.tolist(), groups]

    assert run(tc) == run(torch)
    with pytest.raises(tc.ShapeError, match="too few elements"):
        tc._utils._unflatten_dense_tensors(tc.ones(1), [tc.ones(2)])


def test_functions_of_several_devices() -> None:
    from tinygrad_cuda.nn.parallel._functions import (
        Broadcast,
        Gather,
        ReduceAddCoalesced,
        Scatter,
    )

    x = tc.ones(2, device="cpu", requires_grad=True)
    (y,) = Broadcast.apply(["cpu"], x)
    (z,) = Scatter.apply(["cpu"], None, 0, y * 2)
    total = ReduceAddCoalesced.apply("cpu", 2, z, y, z, y)
    assert [t.tolist() for t in total] == [[4.0, 4.0], [2.0, 2.0]]
    Gather.apply("cpu", 0, *total).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [6.0, 6.0]
    with pytest.raises(tc.ArgumentError, match="one device"):
        Broadcast.apply(["cpu", "cuda"], x)


@pytest.mark.parametrize("library", [tc, torch])
def test_futures(library: Any) -> None:
    futures = library.futures
    first, second = futures.Future[int](), futures.Future()
    seen: list[Any] = []
    first.add_done_callback(lambda future: seen.append(future.value()))
    later = first.then(lambda future: future.wait() + 1)
    both = futures.collect_all([first, second])
    assert not first.done() and not both.done()
    with pytest.raises(RuntimeError):
        first.value()
    threading.Timer(0.05, first.set_result, [3]).start()
    assert (first.wait(), later.wait(), seen, both.done()) == (3, 4, [3], False)
    second.set_result(5)
    assert [future.wait() for future in both.wait()] == [3, 5]
    assert futures.wait_all([second, first]) == [5, 3]
    assert futures.collect_all([]).wait() == []
    with pytest.raises(RuntimeError):
        second.set_result(6)
    third = futures.Future()
    third.set_exception(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        third.wait()
    with pytest.raises(Exception, match="no"):
        third.then(lambda future: future.wait()).wait()
    with pytest.raises(ValueError, match="no"):
        futures.wait_all([first, third])


def test_the_package_has_itself() -> None:
    """`import torch` binds a package that has the attribute `torch`, which programs write."""
    assert torch.torch is torch
    assert tc.torch is tc
    assert tc.Future is tc.futures.Future
