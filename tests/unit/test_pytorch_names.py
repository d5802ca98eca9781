"""Names that programs written for PyTorch use, each as such a program uses it."""

from __future__ import annotations

import importlib
import itertools
import warnings
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc

CPU = {"device": "cpu"}


@pytest.fixture(autouse=True)
def on_cpu() -> Any:
    with tc.device("cpu"):
        yield


# Old constructors and types -----------------------------------------------------------------------


def both(text: str) -> None:
    """The same expression under both libraries: equal texts of the results."""
    torch = pytest.importorskip("torch")
    texts = [repr(eval(text, {"torch": t, "np": np})) for t in (torch, tc)]
    words = [text.replace("torch.", "").replace("tinygrad_cuda.", "") for text in texts]
    assert words[0] == words[1]


@pytest.mark.parametrize(
    "text",
    [
        "torch.Tensor(2, 3).shape",
        "torch.Tensor([1, 2, 3])",
        "torch.Tensor(((1, 2), (3, 4)))",
        "torch.Tensor()",
        "torch.Tensor(torch.Size([2, 3])).shape",
        "torch.Tensor(np.arange(3))",
        "torch.FloatTensor([1, 2])",
        "torch.LongTensor([1, 2])",
        "torch.LongTensor(2, 3).dtype",
        "torch.ByteTensor([1])",
        "torch.BoolTensor([True, False])",
        "torch.DoubleTensor([1.5])",
        "torch.HalfTensor([1.5])",
        "[torch.IntTensor(range(1, 3)), torch.Tensor(range(2)), torch.ones(1).new(range(3))]",
        "torch.ones(2).type(torch.LongTensor)",
        "torch.ones(2).type('torch.LongTensor')",
        "torch.ones(2).type(torch.float64)",
        "[torch.arange(3).type(t).dtype for t in (torch.Tensor, 'torch.Tensor')]",
        "torch.nn.Linear(2, 2).double().type(torch.Tensor).weight.dtype",
        "torch.ones(2).type()",
        "torch.ones(2).long().type()",
        "isinstance(torch.ones(2), torch.FloatTensor)",
        "isinstance(torch.ones(2), torch.LongTensor)",
        "isinstance(torch.ones(2).long(), torch.LongTensor)",
        "torch.ones(2).new(2, 3).shape",
        "torch.ones(2).long().new([1, 2])",
        "torch.autograd.Variable(torch.ones(2), requires_grad=True)",
        "isinstance(torch.ones(2), torch.autograd.Variable)",
        "torch.typename(torch.ones(2))",
        "torch.typename([])",
        "[torch.ones(2, dtype=t).dtype for t in (float, int, bool, complex)]",
        "[torch.ones(2).to(float).dtype, torch.tensor([1], dtype=float).dtype]",
        "[torch.finfo(float).eps, torch.iinfo(int).max]",
        "torch.typename(torch.ones)[-4:]",
        "torch.asarray([1, 2], dtype=torch.float64, requires_grad=True)",
        "torch.asarray(torch.ones(2), copy=True)",
        "torch.asarray(torch.ones(2, requires_grad=True), requires_grad=False)",
        "torch.frombuffer(bytearray([1, 0, 2, 0, 3, 0]), dtype=torch.int16)",
        "torch.frombuffer(bytearray(16), dtype=torch.float32, count=2, offset=4)",
        "torch.frombuffer(bytearray(4), dtype=torch.float32, requires_grad=True)",
        "torch.zeros(2, 3, 4).permute(1, 2, 0).dim_order()",
        "[[torch.can_cast(a, b) for a in (torch.int8, torch.uint8, torch.float32, torch.bool,"
        " torch.complex64)] for b in (torch.uint8, torch.int32, torch.float16, torch.bool)]",
    ],
)
def test_constructors_and_types(text: str) -> None:
    both(text)


def test_constructor_of_the_wrong_thing() -> None:
    with pytest.raises(tc.ArgumentError, match="neither sizes nor data"):
        tc.Tensor("abc")
    with pytest.raises(tc.DTypeError, match=r"\[LongTensor\] the tensor has another dtype"):
        tc.LongTensor(tc.ones(2))


def test_a_class_of_tensors() -> None:
    class Own(tc.Tensor):
        pass

    made = Own([1.0, 2.0])
    assert type(made) is Own
    made += 1
    assert made.tolist() == [2.0, 3.0]


def test_default_tensor_type() -> None:
    tc.set_default_tensor_type("torch.DoubleTensor")
    try:
        assert tc.ones(1).dtype is tc.float64
    finally:
        tc.set_default_tensor_type(tc.FloatTensor)
    assert tc.ones(1).dtype is tc.float32
    for wrong in ("float", tc.Tensor, "torch.Tensor"):
        with pytest.raises(tc.ArgumentError, match="not a tensor type"):
            tc.set_default_tensor_type(wrong)


# Keyword forms ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "torch.zeros(size=(2, 3)).shape",
        "torch.ones(size=(2,), dtype=torch.int64)",
        "torch.empty(size=(2, 0)).shape",
        "torch.rand(size=(2, 3)).shape",
        "torch.randn(size=[2, 3]).shape",
        "torch.full(size=(2,), fill_value=3.0)",
        "torch.randint(low=0, high=1, size=(2,))",
        "torch.randint(1, size=(3,))",
        "torch.randint(high=1, size=(3,))",
        "torch.randint_like(torch.ones(2), high=1)",
        "torch.randint_like(torch.ones(2).long(), low=3, high=4)",
        "torch.randint_like(torch.ones(2), 4, 5)",
        "torch.repeat_interleave(torch.tensor([1, 0, 2]))",
        "torch.as_strided_scatter(torch.zeros(3, 3), torch.arange(2), (2,), (2,))",
        "torch.spmm(torch.eye(2), torch.ones(2, 3))",
        "torch.randperm(n=1)",
        "torch.ones(2, 3).permute(dims=(1, 0)).shape",
        "torch.permute(torch.ones(2, 3), dims=(1, 0)).shape",
        "torch.ones(2, 3).reshape(shape=(3, 2)).shape",
        "torch.reshape(torch.ones(2, 3), shape=(6,)).shape",
        "torch.ones(2, 3).view(size=(3, 2)).shape",
        "torch.arange(4).split(split_size=3)",
        "torch.arange(4).split([1, 3])",
        "torch.arange(2).repeat(repeats=(2, 1))",
        "torch.arange(2).expand(size=(3, 2))",
        "torch.arange(2).tile(dims=(2,))",
        "torch.broadcast_to(torch.arange(2), size=(2, 2))",
        "torch.ones(2).new_zeros(size=(3,))",
        "torch.zeros(2, layout=torch.strided, pin_memory=False)",
        "torch.zeros_like(torch.ones(2), memory_format=torch.preserve_format)",
        "torch.ones(1, 2, 3, 4).contiguous(memory_format=torch.channels_last).stride()",
        "torch.ones(1, 2, 3, 4).is_contiguous(memory_format=torch.channels_last)",
        "torch.arange(12).reshape(3, 4)[range(3), torch.tensor([1, 2, 3])]",
        "torch.arange(12).reshape(3, 4)[:, range(1, 3)]",
    ],
)
def test_keyword_forms(text: str) -> None:
    both(text)


@pytest.mark.parametrize(
    ("call", "out"),
    [
        ("torch.add(torch.ones(2), 1, out=o)", "torch.zeros(2)"),
        ("torch.mul(torch.ones(2), 3, out=o)", "torch.zeros(5)"),
        ("torch.matmul(torch.ones(2, 2), torch.ones(2, 2), out=o)", "torch.zeros(2, 2)"),
        ("torch.cat([torch.ones(2), torch.ones(1)], out=o)", "torch.zeros(0)"),
        ("torch.sigmoid(torch.zeros(3), out=o)", "torch.ones(3, dtype=torch.float64)"),
        ("torch.sum(torch.ones(2, 3), dim=1, out=o)", "torch.zeros(2)"),
        ("torch.clamp(torch.ones(3), 0, 0.5, out=o)", "torch.zeros(3)"),
        ("torch.arange(3, out=o)", "torch.zeros(3)"),
        ("torch.max(torch.eye(2), 1, out=o)[0]", "(torch.ones(2), torch.zeros(2).long())"),
    ],
)
def test_out(call: str, out: str) -> None:
    torch = pytest.importorskip("torch")
    texts = []
    for t in (torch, tc):
        target = eval(out, {"torch": t})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's, of an output of another shape
            result = eval(call, {"torch": t, "o": target})
        assert result is (target[0] if isinstance(target, tuple) else target)
        texts.append(repr(target).replace("torch.", "").replace("tinygrad_cuda.", ""))
    assert texts[0] == texts[1]


def test_out_refuses_what_torch_refuses() -> None:
    with pytest.raises(tc.DTypeError, match=r"does not fit out="):
        tc.exp(tc.ones(2), out=tc.zeros(2, dtype=tc.int64))
    with pytest.raises(tc.GradientError, match="out= passes no gradient"):
        tc.exp(tc.ones(2, requires_grad=True), out=tc.zeros(2))


# Names of dtypes, devices and layouts -------------------------------------------------------------


def test_dtypes_that_exist_by_name_only() -> None:
    assert isinstance(tc.chalf, tc.dtype) and tc.chalf.is_complex
    assert tc.cfloat is tc.complex64 and tc.float8_e4m3fn.is_floating_point
    assert tc.ones(1).dtype not in (tc.chalf, tc.float8_e5m2)
    for use in (
        lambda: tc.ones(2).to(tc.chalf),
        lambda: tc.zeros(2, dtype=tc.float8_e5m2),
        lambda: tc.tensor([1], dtype=tc.quint8),
        lambda: tc.nn.Linear(2, 2, dtype=tc.chalf),
        lambda: tc.arange(3, dtype=tc.chalf),
    ):
        with pytest.raises(tc.DTypeError, match=r"no arithmetic|quantized"):
            use()


def test_meta_device() -> None:
    with tc.device("meta"):
        model = tc.nn.Sequential(tc.nn.Linear(1000, 1000), tc.nn.ReLU(), tc.nn.Linear(1000, 10))
    x = tc.ones(5, 1000, device="meta")
    assert model(x).shape == (5, 10) and model(x).is_meta and x.device.type == "meta"
    model(x).sum().backward()
    weight = model[0].weight
    assert weight.grad.shape == (1000, 1000)
    tc.optim.SGD(model.parameters(), 0.1).step()
    with pytest.raises(tc.DeviceError, match="no values"):
        weight.detach().tolist()
    with pytest.raises(tc.DeviceError, match="no values"):
        model.to("cpu")
    state = tc.nn.Sequential(
        tc.nn.Linear(1000, 1000), tc.nn.ReLU(), tc.nn.Linear(1000, 10)
    ).state_dict()
    model.to_empty(device="cpu").load_state_dict(state)
    assert model(tc.ones(5, 1000)).isfinite().all()


def test_device_is_a_block() -> None:
    with tc.device("meta"):
        assert tc.ones(1).device.type == "meta"
        with tc.device("cpu"):
            assert tc.ones(1).device == "cpu"
    assert tc.ones(1).device == "cpu"
    assert tc.device("cpu", 0) is tc.device("cpu:0") is tc.device("cpu")


# Namespaces ---------------------------------------------------------------------------------------


def test_jit() -> None:
    model = tc.nn.Linear(2, 2)
    tc.jit._note.cache_clear()
    with pytest.warns(UserWarning, match="there is no TorchScript") as of_script:
        assert tc.jit.script(model) is model
    with pytest.warns(UserWarning, match="there is no TorchScript") as of_trace:
        assert tc.jit.trace(model, tc.ones(1, 2)) is model
    # Each once, at the line that calls it.
    assert [warning.filename for warning in (*of_script, *of_trace)] == [__file__] * 2

    class Net(tc.jit.ScriptModule):
        scale: tc.jit.Final[int] = 2

        @tc.jit.export
        def one(self) -> int:
            return 1

        @tc.jit.ignore
        def two(self) -> int:
            return 2

        @tc.jit.unused
        def three(self) -> int:
            return 3

        @tc.jit.script_method
        def forward(self, x: Any) -> Any:
            return x if tc.jit.is_scripting() or tc.jit.is_tracing() else x * self.scale

    net = Net()
    assert net(tc.ones(1)).tolist() == [2.0] and net.one() + net.two() + net.three() == 6
    assert tc.jit.annotate(list[int], [1]) == [1] and tc.jit.isinstance(1, int)


def test_compilers_words() -> None:
    assert tc.fx.wrap("len") == "len"
    assert not tc.compiler.is_compiling()
    seen = []

    @tc.compile
    def f(x: Any) -> Any:
        seen.append(tc.compiler.is_compiling())
        return x * 2

    f(tc.ones(1))
    assert seen[0]

    @tc.compiler.disable
    def g(x: Any) -> Any:
        return x

    assert tc.compiler.disable()(g) is g and tc._dynamo.disable(g)(1) == 1
    tc._dynamo.config.suppress_errors = True
    tc._dynamo.reset()
    tc._assert(True, "fine")
    with pytest.raises(AssertionError, match="not fine"):
        tc._assert(False, "not fine")


def test_version() -> None:
    assert tc.version.__version__ == tc.__version__
    assert tc.version.cuda is None or tc.version.cuda[0].isdigit()
    assert tc.version.hip is None


def test_accelerator_without_gpu() -> None:
    if tc.cuda.is_available():
        pytest.skip("there is a GPU")
    assert not tc.accelerator.is_available() and tc.accelerator.device_count() == 0
    assert tc.accelerator.current_accelerator() is None
    tc.accelerator.synchronize()


def test_calls_without_gpu() -> None:
    if tc.cuda.is_available():
        pytest.skip("there is a GPU")
    assert tc.cuda.memory_allocated() == tc.cuda.max_memory_allocated() == 0
    assert tc.cuda.memory_reserved() == 0 and tc.cuda.get_rng_state_all() == []
    tc.cuda.empty_cache(), tc.cuda.reset_peak_memory_stats(), tc.cuda.ipc_collect()
    tc.cuda.manual_seed_all(3), tc.cuda.set_rng_state_all([])
    assert not tc.cuda.is_initialized() and tc.cuda.get_arch_list() == []
    assert isinstance(tc.cuda.Stream().device, tc.device)
    with tc.cuda.stream(tc.cuda.current_stream()), tc.cuda.device(-1):
        assert tc.ones(1).device == "cpu"
    for use in (tc.cuda.synchronize, tc.cuda.current_device, tc.cuda.get_device_name):
        with pytest.raises(tc.DeviceError, match="no GPU can be used"):
            use()
    with pytest.raises(tc.DeviceError, match="no GPU can be used"):
        tc.cuda.FloatTensor([1.0])
    assert tc.cuda.FloatTensor.dtype is tc.float32


def test_onnx() -> None:
    assert not tc.onnx.is_in_onnx_export()
    with pytest.raises(tc.ArgumentError, match="no export to this opset"):
        tc.onnx.export(tc.nn.Linear(1, 1), tc.ones(1), "x.onnx", opset_version=9)


def test_distributed() -> None:
    group = tc.distributed
    assert group.is_available() and not group.is_initialized()
    assert (group.get_rank(), group.get_world_size()) == (0, 1)
    with pytest.raises(tc.ArgumentError, match="a process computes by itself"):
        group.init_process_group("nccl", rank=0, world_size=2)
    group.init_process_group("gloo", rank=0, world_size=1)
    try:
        assert group.is_initialized() and group.get_backend() == "gloo"
        x, y = tc.arange(3.0), tc.zeros(3)
        group.all_reduce(x, op=group.ReduceOp.SUM), group.broadcast(x, 0), group.barrier()
        group.all_gather([y], x)
        assert x.tolist() == y.tolist() == [0.0, 1.0, 2.0]
        model = tc.nn.parallel.DistributedDataParallel(tc.nn.Linear(3, 1))
        with model.no_sync():
            model(x).backward()
        assert model.module.weight.grad is not None
    finally:
        group.destroy_process_group()


def _worker(rank: int, value: int) -> None:
    if rank + value != value:
        raise SystemExit(3)


def test_multiprocessing() -> None:
    mp = tc.multiprocessing
    mp.set_sharing_strategy("file_system")
    mp.spawn(_worker, (5,), nprocs=1)
    with pytest.raises(RuntimeError, match="terminated with exit code 3"):
        mp.start_processes(_worker, (5,), nprocs=2, start_method="fork")
    assert mp.get_context("spawn").Queue is not None


def test_parallel_modules_on_one_device() -> None:
    model = tc.nn.DataParallel(tc.nn.Linear(3, 2))
    assert list(model.state_dict()) == ["module.weight", "module.bias"]
    assert model(tc.ones(4, 3)).shape == (4, 2)
    with pytest.raises(tc.ArgumentError, match="one device"):
        tc.nn.DataParallel(tc.nn.Linear(3, 2), device_ids=[0, 1])


def test_sync_batch_norm() -> None:
    torch = pytest.importorskip("torch")
    values = np.random.default_rng(0).standard_normal((4, 3, 5)).astype(np.float32)
    results = []
    for t in (torch, tc):
        body = t.nn.Sequential(t.nn.BatchNorm1d(3), t.nn.ReLU())
        model = t.nn.SyncBatchNorm.convert_sync_batchnorm(body)
        assert isinstance(model[0], t.nn.SyncBatchNorm)
        out = model(t.tensor(values))
        results.append((out.detach().numpy(), model[0].running_var.numpy()))
    np.testing.assert_allclose(results[0][0], results[1][0], atol=1e-5)
    np.testing.assert_allclose(results[0][1], results[1][1], atol=1e-5)
    with pytest.raises(tc.ShapeError, match="at least 2"):
        tc.nn.SyncBatchNorm(3)(tc.ones(3))


def test_backends_are_modules() -> None:
    cudnn = importlib.import_module("tinygrad_cuda.backends.cudnn")
    cudnn.benchmark, cudnn.deterministic, cudnn.enabled = True, True, True
    assert cudnn is tc.backends.cudnn and not cudnn.is_available() and cudnn.version() is None
    with cudnn.flags(enabled=False, benchmark=False):
        assert not cudnn.enabled and not cudnn.benchmark
    assert cudnn.enabled and cudnn.benchmark
    cudnn.benchmark = cudnn.deterministic = False
    assert not tc.backends.mps.is_available() and not tc.backends.mps.is_built()
    assert tc.backends.cuda.is_built() == tc.cuda.is_available()
    with tc.backends.cuda.sdp_kernel(enable_flash=False):
        assert not tc.backends.cuda.flash_sdp_enabled()
    assert tc.backends.cuda.flash_sdp_enabled()


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("nn.modules.batchnorm", "_BatchNorm BatchNorm2d"),
        ("nn.modules.conv", "_ConvNd Conv2d"),
        ("nn.modules.utils", "_single _pair _triple _ntuple _reverse_repeat_tuple"),
        ("nn.modules.module", "Module"),
        ("nn.modules.loss", "_Loss _WeightedLoss CrossEntropyLoss"),
        ("nn.modules.activation", "MultiheadAttention ReLU"),
        ("nn.modules.rnn", "RNNBase LSTM"),
        ("nn.modules.linear", "Linear Identity"),
        ("nn.modules.container", "Sequential ModuleList"),
        ("nn.parallel", "DataParallel DistributedDataParallel data_parallel"),
        ("nn.utils", "clip_grad_norm clip_grad_norm_ weight_norm"),
        ("optim.optimizer", "Optimizer required"),
        ("optim.lr_scheduler", "_LRScheduler LRScheduler"),
        ("autograd", "Variable Function graph"),
        ("autograd.function", "once_differentiable InplaceFunction"),
        ("utils.data.dataloader", "DataLoader default_collate"),
        ("utils.data.distributed", "DistributedSampler"),
        ("utils.data.sampler", "Sampler SubsetRandomSampler"),
        ("utils.data.dataset", "Dataset random_split"),
        ("utils.data._utils.collate", "default_collate"),
        ("utils.tensorboard", "SummaryWriter"),
        ("utils.model_zoo", "load_url"),
        ("utils.hooks", "RemovableHandle"),
        ("utils.checkpoint", "checkpoint"),
        ("cuda.amp", "autocast GradScaler custom_fwd custom_bwd"),
        ("hub", "load_state_dict_from_url set_dir get_dir"),
    ],
)
def test_modules_are_where_pytorch_has_them(module: str, names: str) -> None:
    found = importlib.import_module(f"tinygrad_cuda.{module}")
    missing = [name for name in names.split() if not hasattr(found, name)]
    assert not missing


def test_pairs() -> None:
    utils = importlib.import_module("tinygrad_cuda.nn.modules.utils")
    assert utils._pair(3) == (3, 3) and utils._pair((1, 2)) == (1, 2)
    assert utils._reverse_repeat_tuple((1, 2), 2) == (2, 2, 1, 1)


def test_pytree() -> None:
    torch = pytest.importorskip("torch")
    value = {"a": 1, "b": [2, (3, 4)]}
    results = []
    for t in (torch, tc):
        tree = importlib.import_module(f"{t.__name__}.utils._pytree")
        leaves, spec = tree.tree_flatten(value)
        results.append(
            (
                tree.tree_map(lambda x: x * 2, value),
                leaves,
                tree.tree_unflatten([5, 6, 7, 8], spec),
                tree.tree_leaves(value),
                tree.tree_all(lambda x: x > 1, value),
            )
        )
    assert results[0] == results[1]


def test_summary_writer(tmp_path: Any) -> None:
    pytest.importorskip("tensorboardX")
    with tc.utils.tensorboard.SummaryWriter(str(tmp_path)) as writer:
        writer.add_scalar("loss", tc.tensor(0.5), 1)
        writer.add_scalars("both", {"a": tc.tensor(1.0), "b": 2.0}, 1)
        writer.add_histogram("weights", tc.ones(5), 1)
        writer.flush()
    assert list(tmp_path.rglob("events*"))


def test_hub(tmp_path: Any) -> None:
    file = tmp_path / "weights.safetensors"
    tc.save({"w": tc.arange(3)}, file)
    before = tc.hub.get_dir()
    tc.hub.set_dir(tmp_path / "hub")
    try:
        state = tc.hub.load_state_dict_from_url(file.as_uri(), map_location="cpu")
        assert state["w"].tolist() == [0, 1, 2]
        assert (tmp_path / "hub" / "checkpoints" / "weights.safetensors").exists()
    finally:
        tc.hub.set_dir(before)
    with pytest.raises(tc.DataError, match="checksum"):
        tc.hub.download_url_to_file(file.as_uri(), tmp_path / "other", hash_prefix="0000")
    assert not (tmp_path / "other").exists()
    with pytest.raises(tc.ArgumentError, match="not run"):
        tc.hub.load("somebody/something", "model")


# Data ---------------------------------------------------------------------------------------------


def test_samplers_take_types() -> None:
    class Every(tc.utils.data.Sampler[int]):
        def __init__(self, source: Any) -> None:
            super().__init__(source)
            self.source = source

        def __iter__(self) -> Any:
            return iter(range(len(self.source)))

    class Squares(tc.utils.data.Dataset[int]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> int:
            return index**2

    loader = tc.utils.data.DataLoader(Squares(), batch_size=2, sampler=Every(range(4)))
    assert [batch.tolist() for batch in loader] == [[0, 1], [4, 9]]


def test_random_sampler_of_more_than_fits_into_memory() -> None:
    sampler = tc.utils.data.RandomSampler(range(10), replacement=True, num_samples=int(1e10))
    data = tc.utils.data.TensorDataset(tc.arange(10))
    loader = tc.utils.data.DataLoader(data, batch_size=4, sampler=sampler)
    assert len(sampler) == 10**10
    for (batch,) in itertools.islice(loader, 3):
        assert batch.shape == (4,) and int(batch.max()) < 10


def test_distributed_sampler() -> None:
    torch = pytest.importorskip("torch")
    for drop, rank in itertools.product((False, True), (0, 1, 2)):
        shares = [
            list(t.utils.data.distributed.DistributedSampler(
                range(10), num_replicas=3, rank=rank, shuffle=False, drop_last=drop
            ))
            for t in (torch, tc)
        ]  # fmt: skip
        assert shares[0] == shares[1]
    sampler = tc.data.DistributedSampler(range(10), 2, 0)
    first = list(sampler)
    assert list(sampler) == first
    sampler.set_epoch(1)
    assert list(sampler) != first


# Gradients ----------------------------------------------------------------------------------------


def test_hook_after_accumulation() -> None:
    torch = pytest.importorskip("torch")
    for t in (torch, tc):
        x = t.nn.Parameter(t.tensor([1.0, 2.0]))
        seen: list[Any] = []

        def hook(p: Any, seen: list[Any] = seen) -> None:
            seen.append(p.grad.tolist())
            p.grad = None

        handle = x.register_post_accumulate_grad_hook(hook)
        (x * x).sum().backward()
        (x * 3).sum().backward()
        assert seen == [[2.0, 4.0], [3.0, 3.0]] and x.grad is None
        t.autograd.grad((x * x).sum(), x)
        assert len(seen) == 2
        handle.remove()
        (x * 3).sum().backward()
        assert x.grad.tolist() == [3.0, 3.0] and len(seen) == 2
        with pytest.raises(RuntimeError):
            (x * 2).register_post_accumulate_grad_hook(hook)


def test_hooks_on_saved_tensors() -> None:
    torch = pytest.importorskip("torch")
    for t in (torch, tc):

        class Square(t.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                ctx.save_for_backward(x)
                return x * x

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                return 2 * g * ctx.saved_tensors[0]

        seen: list[str] = []
        x = t.tensor([3.0], requires_grad=True)
        add = seen.append

        def pack(v: Any, add: Any = add) -> Any:
            add("pack")
            return v + 1

        def unpack(v: Any, add: Any = add) -> Any:
            add("unpack")
            return v - 1

        with t.autograd.graph.saved_tensors_hooks(pack, unpack):
            y = Square.apply(x)
        y.sum().backward()
        assert seen == ["pack", "unpack"] and x.grad.tolist() == [6.0]
        with t.autograd.graph.save_on_cpu():
            Square.apply(x).sum().backward()
        with (
            t.autograd.graph.disable_saved_tensors_hooks("not now"),
            pytest.raises(RuntimeError, match="not now"),
            t.autograd.graph.saved_tensors_hooks(lambda v: v, lambda v: v),
        ):
            pass


def test_attributes_of_parameters() -> None:
    weight = tc.nn.Parameter(tc.ones(1))
    weight._no_weight_decay = True
    assert weight._no_weight_decay


# Layers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4), (2, 3, 4, 5)])
def test_channel_dropout_of_any_rank(shape: tuple[int, ...]) -> None:
    tc.manual_seed(0)
    dropped = tc.nn.Dropout2d(0.5)(tc.ones(*shape))
    whole = dropped.reshape(shape[0], shape[1], -1)
    assert bool((whole == whole[:, :, :1]).all()) and sorted(set(whole.reshape(-1).tolist())) == [
        0.0, 2.0,
    ]  # fmt: skip
    assert (
        tc.nn.functional.dropout2d(tc.ones(*shape), training=False).tolist()
        == tc.ones(*shape).tolist()
    )


@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 3, 2), (2, 2, 2, 2)])
@pytest.mark.parametrize("name", ["Softmax", "LogSoftmax", "Softmin"])
def test_softmax_without_dim(name: str, shape: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")
    values = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = getattr(torch.nn, name)()(torch.tensor(values))
    with pytest.warns(UserWarning, match="without dim"):
        found = getattr(tc.nn, name)()(tc.tensor(values))
    np.testing.assert_allclose(found.numpy(), expected.numpy(), atol=1e-6)


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_grid_sample(mode: str, padding: str, aligned: bool) -> None:
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(3)
    image = random.standard_normal((2, 3, 4, 5))
    grid = random.uniform(-2.7, 2.7, (2, 6, 7, 2))
    results = []
    for t in (torch, tc):
        x, g = t.tensor(image, requires_grad=True), t.tensor(grid, requires_grad=True)
        out = t.nn.functional.grid_sample(x, g, mode, padding, aligned)
        (out * out).sum().backward()
        # The nearest pixel does not change with the place: zeros in torch, and no gradient here.
        of_grid = np.zeros_like(grid) if g.grad is None else g.grad.numpy()
        results.append([out.detach().numpy(), x.grad.numpy(), of_grid])
    for expected, found in zip(*results):
        np.testing.assert_allclose(found, expected, atol=1e-9)


def test_functional_names_at_the_top() -> None:
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(5)
    a, b = (random.standard_normal((4, 3)).astype(np.float32) for _ in range(2))
    labels = random.integers(0, 3, 4)
    results = []
    for t in (torch, tc):
        x, y, k = t.tensor(a), t.tensor(b), t.tensor(labels)
        one = t.tensor([1.0, -1.0, 1.0, 1.0])
        zero, unit = t.zeros(3), t.ones(3)
        results.append([
            t.embedding(x, k), t.dropout(x, 0.5, False), t.alpha_dropout(x, 0.5, False),
            t.batch_norm(x, unit, zero, None, None, True, 0.1, 1e-5, False),
            t.instance_norm(x.reshape(1, 3, 4), unit, zero, None, None, True, 0.1, 1e-5, False),
            t.adaptive_max_pool1d(x.reshape(1, 4, 3), 2)[0],
            t.binary_cross_entropy_with_logits(x, y.sigmoid(), None, None, 1),
            t.cosine_embedding_loss(x, y, one, 0.1, 2), t.hinge_embedding_loss(x[:, 0], one),
            t.kl_div(x, y.sigmoid(), 2), t.margin_ranking_loss(x[:, 0], y[:, 0], one, 0.2),
            t.ctc_loss(x.reshape(2, 2, 3), k[:2].reshape(2, 1), [2, 2], [1, 1], 2),
            t.triplet_margin_loss(x, y, x + 1), t.poisson_nll_loss(x, y.exp(), True, False, 0.0, 0),
        ])  # fmt: skip
    for number, (expected, found) in enumerate(zip(*results)):
        np.testing.assert_allclose(found.numpy(), expected.numpy(), atol=1e-5, err_msg=str(number))
    x = tc.ones(100)
    assert tc.dropout_(x, 0.5, True) is x and set(x.tolist()) == {0.0, 2.0}


@pytest.mark.parametrize("padding", [None, 2, -1])
@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_embedding_bag_at_the_top(dtype: str, mode: int, padding: int | None) -> None:
    """The table first and four results, unlike that of nn.functional."""
    torch = pytest.importorskip("torch")
    table = np.random.default_rng(7).standard_normal((5, 3)).astype(dtype)
    results = []
    for t in (torch, tc):
        weight = t.tensor(table, requires_grad=True)
        rows, begins = t.tensor([0, 2, 4, 4, 1]), t.tensor([0, 2, 2])
        several = t.embedding_bag(weight, rows, begins, False, mode, False, None, False, padding)
        again = t.embedding_bag(
            weight, rows, t.tensor([0, 2, 2, 5]), mode=mode, include_last_offset=True
        )
        (several[0] * again[0]).sum().backward()
        results.append([x.detach().numpy() for x in (*several, *again, weight.grad)])
    for expected, found in zip(*results):
        np.testing.assert_allclose(found, expected, rtol=1e-6, strict=True)
    with pytest.raises(tc.ArgumentError, match="unknown mode"):
        tc.embedding_bag(weight, rows, begins, mode=3)


# Printing -----------------------------------------------------------------------------------------


def test_printoptions() -> None:
    torch = pytest.importorskip("torch")
    values = np.array([1.23456, 1000.5, 3.0], np.float32)
    long = np.arange(30, dtype=np.float32)
    for options in (
        {"precision": 2},
        {"threshold": 10, "edgeitems": 2},
        {"linewidth": 40},
        {"sci_mode": True},
        {"sci_mode": False, "precision": 6},
        {"profile": "short"},
        {"profile": "full"},
    ):
        texts = []
        for t in (torch, tc):
            t.set_printoptions(**options)
            try:
                texts.append(
                    [repr(t.tensor(values)), repr(t.tensor(long)).replace(", shape=(30,)", "")]
                )
            finally:
                t.set_printoptions(profile="default")
        assert texts[0] == texts[1], options


def test_settings_that_change_nothing() -> None:
    tc.set_num_interop_threads(2)
    assert tc.get_num_interop_threads() == 2
    tc.set_warn_always(False)
    assert tc.set_flush_denormal(False) is False
    tc.set_num_interop_threads(1)


# einops -------------------------------------------------------------------------------------------


def test_einops_takes_tensors() -> None:
    torch, einops = pytest.importorskip("torch"), pytest.importorskip("einops")
    values = np.arange(24.0).reshape(2, 3, 4)
    results = []
    for t in (torch, tc):
        x = t.tensor(values, requires_grad=True)
        parts = [
            einops.rearrange(x, "a b c -> c (b a)"),
            einops.repeat(x, "a b c -> a (b r) c d", r=2, d=3),
            einops.reduce(x, "a (b k) c -> a c b", "mean", k=3),
            einops.reduce(x, "a b c -> c", "max"),
            einops.reduce(x, "a b c -> a b", "prod"),
            einops.einsum(x, x, "a b c, a d c -> a b d"),
            einops.pack([x, x[:, 0]], "a * c")[0],
        ]
        sum((part * part).sum() for part in parts).backward()
        results.append([part.detach().numpy() for part in parts] + [x.grad.numpy()])
    for expected, found in zip(*results):
        np.testing.assert_allclose(found, expected)


def test_layers_of_einops() -> None:
    pytest.importorskip("einops")
    layers = importlib.import_module("einops.layers.tinygrad_cuda")
    model = tc.nn.Sequential(
        layers.Rearrange("a b c -> a (b c)"),
        tc.nn.Linear(12, 6),
        layers.EinMix("a (b c) -> a d c", weight_shape="b d", bias_shape="d c", b=2, c=3, d=5),
        layers.Reduce("a d c -> a", "sum"),
    )
    assert model(tc.ones(2, 3, 4)).shape == (2,)
    assert len(list(model.parameters())) == 4


@pytest.mark.parametrize(
    "older", [{"size_average": False}, {"reduce": False}, {"size_average": True}]
)
def test_older_words_for_reduction(older: dict[str, bool]) -> None:
    torch = pytest.importorskip("torch")
    values = np.random.default_rng(1).random((3, 4)).astype(np.float32)
    results = []
    for t in (torch, tc):
        x, y, k = t.tensor(values), t.tensor(values[::-1].copy()), t.tensor([0, 2, 1])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results.append([
                t.nn.functional.binary_cross_entropy(x, y, **older),
                t.nn.functional.mse_loss(x, y, **older), t.nn.MSELoss(**older)(x, y),
                t.nn.functional.cross_entropy(x, k, **older), t.nn.NLLLoss(**older)(x, k),
                t.nn.BCELoss(**older)(x, y), t.nn.L1Loss(older.get("size_average"))(x, y),
                t.nn.functional.kl_div(x, y, **older), t.nn.KLDivLoss(**older)(x, y),
            ] if "size_average" in older else [t.nn.MSELoss(**older)(x, y)])  # fmt: skip
    for expected, found in zip(*results):
        np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-5)


def test_post_accumulate_hooks_return_nothing() -> None:
    for t in (pytest.importorskip("torch"), tc):
        x = t.ones(2, requires_grad=True)
        x.register_post_accumulate_grad_hook(lambda p: p.grad.mul_(2))
        with pytest.raises(RuntimeError, match="return"):
            x.sum().backward()


# Modules of modules -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("_vmap_internals", "_vmap"),
        ("autograd.anomaly_mode", "detect_anomaly set_detect_anomaly"),
        ("autograd.grad_mode", "no_grad enable_grad inference_mode set_grad_enabled"),
        ("distributed.nn", "all_reduce all_gather"),
        ("hub", "HASH_REGEX _get_torch_home download_url_to_file urlparse"),
        ("jit", "_overload _overload_method freeze optimize_for_inference fork wait"),
        ("nn.attention", "SDPBackend sdpa_kernel"),
        ("nn.common_types", "_size_1_t _size_2_t _size_3_t _size_any_t _ratio_any_t"),
        ("nn.modules", "AdaptiveAvgPool2d BatchNorm2d Conv2d LSTM LazyLinear Linear ReLU Softmax"),
        ("nn.modules.batchnorm", "BatchNorm2d LazyBatchNorm1d"),
        ("nn.modules.conv", "Conv2d LazyConv2d"),
        ("nn.modules.lazy", "LazyModuleMixin"),
        ("nn.modules.linear", "Linear LazyLinear"),
        ("nn.modules.utils", "_pair consume_prefix_in_state_dict_if_present"),
        ("nn.parallel.distributed", "DistributedDataParallel"),
        ("nn.utils.clip_grad", "clip_grad_norm_ clip_grad_value_"),
        ("nn.utils.convert_parameters", "parameters_to_vector vector_to_parameters"),
        ("nn.utils.prune", "l1_unstructured remove BasePruningMethod"),
        ("nn.utils.stateless", "functional_call"),
        ("optim.adadelta", "Adadelta"),
        ("optim.adamw", "AdamW"),
        ("optim.rmsprop", "RMSprop"),
        ("testing", "assert_close assert_allclose"),
        ("types", "Number Device Tensor _int _size _dtype"),
        ("utils.checkpoint", "checkpoint get_device_states set_device_states"),
        ("utils.dlpack", "from_dlpack to_dlpack"),
    ],
)
def test_submodules(module: str, names: str) -> None:
    ours = importlib.import_module(f"tinygrad_cuda.{module}")
    for name in names.split():
        getattr(ours, name)
    if (torch := pytest.importorskip("torch")) and module != "distributed.nn":
        theirs = importlib.import_module(f"{torch.__name__}.{module}")
        assert all(hasattr(theirs, name) for name in names.split())


def test_permitted_ways_of_attention() -> None:
    attention = tc.nn.attention
    x = tc.rand(1, 1, 3, 4)
    with attention.sdpa_kernel([attention.SDPBackend.MATH, attention.SDPBackend.FLASH_ATTENTION]):
        tc.nn.functional.scaled_dot_product_attention(x, x, x)
    with pytest.raises(tc.ArgumentError, match="not a way"), attention.sdpa_kernel("math"):
        pass


def test_a_layer_without_values_of_its_own() -> None:
    layer = tc.nn.utils.skip_init(tc.nn.Linear, 3, 2, bias=False, device="cpu")
    assert layer.weight.device.type == "cpu" and layer.bias is None


def test_capsules() -> None:
    x = tc.arange(3)
    assert tc.utils.dlpack.from_dlpack(tc.utils.dlpack.to_dlpack(x)).tolist() == [0, 1, 2]


def test_as_array_and_buffers_refuse() -> None:
    with pytest.raises(tc.ArgumentError, match="takes a copy"):
        tc.asarray(tc.ones(2), dtype=tc.float64, copy=False)
    with pytest.raises(ValueError, match="does not fit"):
        tc.frombuffer(bytearray(3), dtype=tc.float32)
    with pytest.raises(tc.ArgumentError, match="no bound"):
        tc.randint_like(tc.ones(2))
    with pytest.raises(tc.ArgumentError, match="no counts"):
        tc.repeat_interleave(tc.ones(2))
    with pytest.raises(tc.ArgumentError, match="no list of dimensions"):
        tc.einsum(tc.ones(2), [0, 60])
    with pytest.raises(tc.linalg.LinAlgError, match="full rank"):
        tc.linalg.cholesky(-tc.eye(2))


def test_a_buffer_shares_its_memory() -> None:
    numbers = bytearray(8)
    x = tc.frombuffer(numbers, dtype=tc.int32)
    x[0] = 1
    assert numbers[0] == 1
    assert tc.frombuffer(bytes([7]), dtype=tc.uint8).tolist() == [7]
