"""Order counted on the device and found on the host are the same; long rows; what is refused."""

from __future__ import annotations

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda.tensors import ordering

ROWS = np.array(
    [[2.0, np.nan, -0.0, 0.0, 2.0, -np.inf], [np.nan, 1.0, np.nan, np.inf, 1.0, -3.0]], np.float32
)


def expected(array: np.ndarray, descending: bool) -> np.ndarray:
    """A stable order by Python's sort; NaN is the greatest."""

    def key(row: np.ndarray) -> list[tuple[bool, float]]:
        sign = -1 if descending else 1
        return [(np.isnan(x) != descending, 0.0 if np.isnan(x) else sign * float(x)) for x in row]

    return np.array([sorted(range(len(row)), key=key(row).__getitem__) for row in array])


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("kind", ["cpu", "emu"])
@pytest.mark.parametrize("where", ["device", "host"])
def test_both_ways_give_a_stable_order(
    where: str, kind: str, descending: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ordering, "LONGEST", 4096 if where == "device" else 0)
    x = tc.tensor(ROWS, device=kind)
    values, indices = x.sort(-1, descending)
    order = expected(ROWS, descending)
    assert indices.tolist() == order.tolist()
    np.testing.assert_array_equal(values.numpy(), np.take_along_axis(ROWS, order, 1))


@pytest.mark.parametrize("size", [4097, 20_000])
def test_long_rows_go_through_the_host_and_keep_their_gradients(size: int) -> None:
    array = np.random.default_rng(size).integers(-500, 500, size).astype(np.float64)
    x = tc.tensor(array, device="cpu", requires_grad=True)
    values, indices = x.sort()
    order = np.argsort(array, kind="stable")
    assert np.array_equal(indices.numpy(), order)
    weights = np.arange(size, dtype=np.float64)
    (values * tc.tensor(weights, device="cpu")).sum().backward()
    wanted = np.zeros(size)
    wanted[order] = weights
    np.testing.assert_array_equal(x.grad.numpy(), wanted)


def test_short_rows_are_not_computed_at_the_call() -> None:
    """The order of a short row is a part of the graph like anything else."""
    x = tc.tensor([3.0, 1.0, 2.0], device="cpu") * 2
    values, middle = x.sort().values, x.quantile(0.5)
    assert values.node.storage is None
    assert middle.node.storage is None
    assert x.node.storage is None
    assert values.tolist() == [2.0, 4.0, 6.0]
    assert middle.item() == 4.0


def test_what_cannot_be_chosen_is_refused() -> None:
    x = tc.arange(4, device="cpu")
    for call in (
        lambda: x.topk(5), lambda: x.kthvalue(0), lambda: x.kthvalue(5),
        lambda: tc.zeros(0, device="cpu").median(0),
    ):  # fmt: skip
        with pytest.raises(tc.IndexError):
            call()
    with pytest.raises(tc.ArgumentError, match="0 <= q <= 1"):
        x.float().quantile(1.5)
    with pytest.raises(tc.DTypeError, match="floating"):
        x.quantile(0.5)
    with pytest.raises(tc.ArgumentError, match="interpolation"):
        x.float().quantile(0.5, interpolation="cubic")


def test_on_meta_results_have_shapes_and_dtypes() -> None:
    """Also of rows that no device counts."""
    x = tc.zeros(2, 5000, device="meta")
    results = (x.sort(), x.topk(3), x.median(1), (x.quantile(0.5), x.argsort()))
    for (values, indices), width in zip(results, ((2, 5000), (2, 3), (2,), None)):
        assert values.is_meta and indices.is_meta and indices.dtype is tc.int64
        assert width is None or values.shape == indices.shape == width
