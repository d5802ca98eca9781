"""The strong Wolfe line search, on numbers of the host (Nocedal and Wright, 2006, section 3.5).

Its constants and its interpolation are those of minFunc (Schmidt, 2005), which PyTorch uses too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass
class Trial:
    """A point along a direction d.

    Attributes:
        step: how far along d.
        loss: there.
        slope: the gradient there times d.
        reach: the largest element of |d|.
        rest: what else the caller wants to know of the point.
    """

    step: float
    loss: float
    slope: float
    reach: float
    rest: Any = None


def strong_wolfe(
    evaluate: Callable[[float], Trial],
    start: Trial,
    step: float,
    most: int,
    tolerance_change: float,
    decrease: float = 1e-4,
    curvature: float = 0.9,
) -> tuple[Trial, int]:
    """A trial with less loss and a flatter slope than `start`, and how many were evaluated.

    Args:
        evaluate: the trial at a step.
        start: the trial at step 0.
        step: the first to try.
        most: how many further trials at most.
        tolerance_change: a bracket that moves no parameter by more is not divided.
        decrease, curvature: the constants c1 and c2 of the conditions.
    """
    bracket, tries, done = _bracket(evaluate, start, step, most, decrease, curvature)
    count = tries + 1
    low, high = _order(bracket)
    stalled = False
    while not done and tries < most:
        near, far = sorted((bracket[0].step, bracket[1].step))
        if (far - near) * bracket[-1].reach < tolerance_change:
            break
        middle = interpolated(bracket[0], bracket[1])
        middle, stalled = _away_from_ends(middle, near, far, stalled)
        trial = evaluate(middle)
        count, tries = count + 1, tries + 1
        limit = start.loss + decrease * middle * start.slope
        if trial.loss > limit or trial.loss >= bracket[low].loss:
            bracket[high] = trial
            low, high = _order(bracket)
            continue
        if abs(trial.slope) <= -curvature * start.slope:
            done = True
        elif trial.slope * (bracket[high].step - bracket[low].step) >= 0:
            bracket[high] = bracket[low]
        bracket[low] = trial
    return bracket[low], count


def _strong_wolfe(
    obj_func: Callable[..., tuple[Any, Any]], x: Any, t: Any, d: Any, f: Any, g: Any, gtd: Any,
    c1: float = 1e-4, c2: float = 0.9, tolerance_change: float = 1e-9, max_ls: int = 25,
) -> tuple[Any, Any, float, int]:  # fmt: skip
    """`strong_wolfe` as PyTorch's module of L-BFGS has it, from where programs import it.

    Args:
        obj_func: called as ``obj_func(x, step, d)``; the loss and the gradient at ``x + step * d``.
        x, t, d: the point, the first step and the direction.
        f, g, gtd: loss, gradient and slope at the point.
        c1, c2, tolerance_change, max_ls: as of `strong_wolfe`.

    Returns:
        The loss, the gradient, the step, and how many trials there were.
    """
    reach = float(d.abs().max())

    def evaluate(step: float) -> Trial:
        loss, gradient = obj_func(x, step, d)
        return Trial(step, float(loss), float(gradient.dot(d)), reach, (loss, gradient.clone()))

    start = Trial(0.0, float(f), float(gtd), reach, (f, g))
    best, count = strong_wolfe(evaluate, start, float(t), max_ls, tolerance_change, c1, c2)
    loss, gradient = best.rest
    return loss, gradient, best.step, count


def _bracket(
    evaluate: Callable[[float], Trial], start: Trial, step: float, most: int, decrease: float,
    curvature: float,
) -> tuple[list[Trial], int, bool]:  # fmt: skip
    """Two trials with a good one between them, or a good one, which ends the search."""
    before, trial = start, evaluate(step)
    for tries in range(most):
        limit = start.loss + decrease * trial.step * start.slope
        if trial.loss > limit or (tries > 1 and trial.loss >= before.loss):
            return [before, trial], tries, False
        if abs(trial.slope) <= -curvature * start.slope:
            return [trial], tries, True
        if trial.slope >= 0:
            return [before, trial], tries, False
        bounds = (trial.step + 0.01 * (trial.step - before.step), trial.step * 10)
        before, trial = trial, evaluate(interpolated(before, trial, bounds))
    return [start, trial], most, False


def _order(bracket: list[Trial]) -> tuple[int, int]:
    """The numbers of the trial with less loss and of the other one."""
    return (0, 1) if bracket[0].loss <= bracket[-1].loss else (1, 0)


def _away_from_ends(step: float, near: float, far: float, stalled: bool) -> tuple[float, bool]:
    """A step inside the bracket, and whether it is close to an end, which it may be once.

    The second one in a row (`stalled`), or one outside, is moved inwards.
    """
    margin = 0.1 * (far - near)
    if not min(far - step, step - near) < margin:
        return step, False
    if stalled or step >= far or step <= near:
        return (far - margin if abs(step - far) < abs(step - near) else near + margin), False
    return step, True


def interpolated(a: Trial, b: Trial, bounds: tuple[float, float] | None = None) -> float:
    """The minimum of the cubic through two losses and slopes, within bounds."""
    lower, upper = bounds or (min(a.step, b.step), max(a.step, b.step))
    if a.step > b.step:
        a, b = b, a
    with np.errstate(all="ignore"):
        width = np.float64(b.step) - a.step
        first = a.slope + b.slope - 3.0 * (b.loss - a.loss) / width
        square = first * first - a.slope * b.slope
        if not square >= 0:
            return (lower + upper) / 2.0
        root = np.sqrt(square)
        step = b.step - width * ((b.slope + root - first) / (b.slope - a.slope + 2.0 * root))
    return float(min(max(step, lower), upper))


def _cubic_interpolate(
    x1: Any, f1: Any, g1: Any, x2: Any, f2: Any, g2: Any, bounds: Any = None
) -> float:
    """`interpolated` of steps, losses and slopes, as PyTorch's module of L-BFGS has it."""
    a, b = ((float(x), float(f), float(g), 0.0) for x, f, g in ((x1, f1, g1), (x2, f2, g2)))
    within = None if bounds is None else (float(bounds[0]), float(bounds[1]))
    return interpolated(Trial(*a), Trial(*b), within)
