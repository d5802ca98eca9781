"""Some random graphs in CI, and whether the instrument notices what is wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import graph_ops  # noqa: E402
import graphs  # noqa: E402

# Each of these was a difference before a rule was mended.
SEEDS = (
    1, 6, 13, 16, 18, 56, 78, 88, 97, 138, 155, 156, 303, 339, 479, 1008599, 1008750, 1019434,
    1019704, 1003382, 1019221, 1700631, 3008802, 3011847, 3013506, 3015995, 3017592, 3019208,
    3103854, 4004249, 4005189, 4005587, 14001837,
)  # fmt: skip


@pytest.mark.parametrize("seed", SEEDS)
def test_random_graphs(seed: int) -> None:
    assert graphs.check(graphs.generate(seed), "cpu") is None


LEAF = ("leaf", 0, (3, 4), "float32", "normal", True, 1)
STEP = ("op", 1, "abs", (2, 3, 4), 7)
PROGRAM = [LEAF, STEP, ("backward", 2, 4, 6)]


def wrong(change: Any) -> Any:
    """The row of `abs`, changed for one of the libraries."""
    row = graph_ops.OPS["abs"]

    def run(lib: Any, k: Any, x: Any) -> Any:
        return row.run(lib, k, x) if lib is torch else change(lib, x)

    return row._replace(run=run)


def refuse(lib: Any, x: Any) -> Any:
    raise lib.ShapeError("abs", "refused")


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda lib, x: x.abs() * (1 + 1e-5), "values of abs"),
        (lambda lib, x: x.abs().double(), "dtype of abs"),
        (lambda lib, x: x.abs().t().contiguous().t(), "strides of abs"),
        (lambda lib, x: x.abs()[:2], "shape of abs"),
        (lambda lib, x: x.abs().detach(), "requires_grad of abs"),
        (lambda lib, x: x * x.detach().sign() * 2 - x.detach().abs(), "values of gradient"),
        (refuse, "raised by abs"),
        (lambda lib, x: x.shape[7], "crashed in abs"),
    ],
)
def test_differences_are_noticed(monkeypatch: pytest.MonkeyPatch, change: Any, kind: str) -> None:
    assert graphs.check(PROGRAM, "cpu") is None
    monkeypatch.setitem(graph_ops.OPS, "abs", wrong(change))
    difference = graphs.check(PROGRAM, "cpu")
    assert difference is not None
    assert difference.startswith(f"{kind}:")


@pytest.mark.parametrize(
    ("name", "change", "kind"),
    [
        ("nonzero", lambda x: x[1:], "shape of nonzero"),
        ("argsort", lambda x: x.flip(0), "values of argsort"),
        ("cast to half", lambda x: x * 1.25, "values of cast to half"),
        ("linalg.inv", lambda x: x * 1.0001, "values of linalg.inv"),
    ],
)
def test_far_runs_explain_roundings_alone(
    monkeypatch: pytest.MonkeyPatch, name: str, change: Any, kind: str
) -> None:
    row = graph_ops.OPS[name]
    program = [LEAF, ("op", 1, name, (2, 3, 4), 7), ("backward", 2, 4, 6)]
    assert graphs.check(program, "cpu") is None

    def run(lib: Any, k: Any, *operands: Any) -> Any:
        result = row.run(lib, k, *operands)
        return result if lib is torch else change(result)

    monkeypatch.setitem(graph_ops.OPS, name, row._replace(run=run))
    difference = graphs.check(program, "cpu")
    assert difference is not None
    assert difference.startswith(f"{kind}:")


@pytest.mark.parametrize(("added", "noticed"), [(0.0, False), (0.1, True)])
def test_rows_of_zeros_are_as_exact_as_what_is_added_to_them(
    monkeypatch: pytest.MonkeyPatch, added: float, noticed: bool
) -> None:
    """The mean of seed 1700631's row is 0 by ours, -1e-16 by torch's `x * alpha + beta`."""
    row = graph_ops.OPS["instance_norm"]

    def run(lib: Any, k: Any, *operands: Any) -> Any:
        result = row.run(lib, k, *operands)
        return result if lib is torch else result + added

    monkeypatch.setitem(graph_ops.OPS, "instance_norm", row._replace(run=run))
    difference = graphs.check(graphs.generate(1700631), "cpu")
    assert bool(difference) == noticed
    assert difference is None or difference.startswith("values of instance_norm:")


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("cosine_similarity", lambda x: x + 0.5),
        ("prod of all", lambda x: x * 1.1),
    ],
)
def test_steps_that_are_wrong_for_what_they_were_given_are_noticed(
    monkeypatch: pytest.MonkeyPatch, name: str, change: Any
) -> None:
    """In seed 3013506 a rounding decides between 0 and 1, of which ours has the other one."""
    row = graph_ops.OPS[name]

    def run(lib: Any, k: Any, *operands: Any) -> Any:
        result = row.run(lib, k, *operands)
        return result if lib is torch else change(result)

    monkeypatch.setitem(graph_ops.OPS, name, row._replace(run=run))
    difference = graphs.check(graphs.generate(3013506), "cpu")
    assert difference is not None
    assert difference.startswith("values of ")


@pytest.mark.parametrize(
    ("noise", "turned", "kind"),
    [
        # torch's rounding error is taken for true, ours is the 0 of float64.
        (1e-9, False, None),
        # There is no error: ours has another answer.
        (0.0, True, "values of abs"),
    ],
)
def test_an_integer_is_right_where_float64_says_so(
    monkeypatch: pytest.MonkeyPatch, noise: float, turned: bool, kind: str | None
) -> None:
    def run(lib: Any, k: Any, x: Any) -> Any:
        narrow = lib is torch and x.dtype is torch.float32
        rest = x.detach() * 0 + (noise if narrow else 0)
        other = lib is not torch and turned
        return rest, (rest == 0) if other else (rest != 0)

    row = graph_ops.OPS["abs"]._replace(run=run, rounds=False)
    monkeypatch.setitem(graph_ops.OPS, "abs", row)
    difference = graphs.check([("leaf", 0, (3, 4), "float32", "ties", False, 1), STEP], "cpu")
    assert (difference and difference.split(":")[0]) == kind


def test_a_shape_that_is_wrong_for_its_values_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seed 14001837 has a gradient of roundings alone, none of which has the zero that ours has."""
    row = graph_ops.OPS["nonzero"]

    def run(lib: Any, k: Any, x: Any) -> Any:
        return row.run(lib, k, x) if lib is torch else row.run(lib, k, x)[1:]

    monkeypatch.setitem(graph_ops.OPS, "nonzero", row._replace(run=run))
    program = [LEAF, STEP, ("op", 3, "nonzero", (2, 3, 4), 7)]
    difference = graphs.check(program, "cpu")
    assert difference is not None and difference.startswith("shape of nonzero"), difference


def test_a_program_follows_from_its_seed_and_is_shown() -> None:
    assert graphs.generate(5) == graphs.generate(5)
    assert "torch.abs" in graphs.show(PROGRAM)


def judged_far(ours: float, far: list[float], wanted: float = 1.0) -> str:
    """The judgement of one value, near runs of which agree, by far runs."""
    seen = graphs.Seen("t0", "mul", np.array([wanted]))
    near, others = [np.array([wanted])], [np.array([value]) for value in far]
    return graphs._differs(np.array([ours]), seen, near, others, 2.0**-23)


def test_far_runs_allow_twice_their_distance_and_no_more() -> None:
    assert not judged_far(1.0019, [1.001, 0.9995])
    assert not judged_far(0.9981, [1.001, 0.9995])
    assert judged_far(1.0021, [1.001, 0.9995])
    assert judged_far(0.9, [1.001] * 24)


def test_a_further_run_needs_the_doubled_distance() -> None:
    """Of as many far runs as there are, one more lies outside their range once in 25 times."""
    draws = np.random.default_rng(3).normal(1.0, 1e-3, (4000, graphs.FAR_RUNS + 1))
    ours, far = draws[:, 0], draws[:, 1:]
    distance = np.abs(far - 1.0).max(1)
    assert 0.03 < np.mean(np.abs(ours - 1.0) > distance) < 0.05
    refused = [bool(judged_far(own, list(others))) for own, others in zip(ours, far)]
    assert np.mean(refused) < 0.001


def test_the_gradient_of_matrix_exp_is_that_of_a_small_cotangent() -> None:
    """Rule size_of_the_cotangent: torch's own adjoint loses digits with large ones."""
    leaf = ("leaf", 0, (3, 3), "float64", "normal", True, 1)
    larger = [("op", 1 + k, "rad2deg", (1 + k, 1 + k, 1 + k), 7) for k in (1, 2)]
    program = [leaf, ("op", 1, "linalg.matrix_exp", (1, 1, 1), 7), *larger]
    program += [("op", 4, "mul", (4, 4, 4), 7), ("backward", 5, 4, 6)]
    assert graphs.check(program, "cpu") is None


def test_the_gradient_below_an_empty_vector_is_not_compared() -> None:
    """Rule rows_of_empty_vectors: torch's gradient is that of the row above."""
    program = [
        ("leaf", 0, (0,), "float32", "normal", False, 1),
        ("leaf", 1, (), "float32", "normal", True, 2),
        ("op", 2, "block_diag", (0, 1, 0), 7),
        ("backward", 3, 3, 1),
    ]
    assert graphs.check(program, "cpu") is None


def test_the_gradient_of_equal_elements_of_a_long_column_is_not_compared() -> None:
    """Rule which_of_equals: torch's msort has no order of more than 16 equal elements."""
    program = [
        ("leaf", 0, (40,), "float32", "ties", True, 1),
        ("op", 1, "msort", (1, 1, 1), 7),
        ("op", 2, "cumsum", (1, 1, 1), 7),
        ("backward", 3, 1, 6),
    ]
    assert graphs.check(program, "cpu") is None


def test_the_instruments_matrix_exp_has_the_derivatives_of_torchs() -> None:
    values = np.sin(np.arange(18.0)).reshape(2, 3, 3)
    found = []
    for function in (torch.linalg.matrix_exp, lambda a: graph_ops.matrix_exp(torch, a)):
        a = torch.tensor(values, requires_grad=True)
        (first,) = torch.autograd.grad(function(a), a, a.detach().cos(), create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), a)
        found.append((first.detach(), second))
    for expected, ours in zip(*found):
        np.testing.assert_allclose(ours, expected, rtol=1e-12)
