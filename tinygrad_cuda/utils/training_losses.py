"""How a batch becomes a loss, and the means of losses and metrics over many of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from typing import Any

from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.core.errors import DataError
from tinygrad_cuda.graph.node import gradient_mode
from tinygrad_cuda.tensors.autocast import autocast
from tinygrad_cuda.tensors.tensor import Tensor

Loss = Callable[[Any, Any], Tensor]  # of an output and a target
Step = Callable[[Any, Any], Tensor]  # of a model and a batch


def evaluate(
    model: Any, loss: Loss, batches: Iterable[Any], metrics: Mapping[str, Loss] | None = None
) -> dict[str, float]:
    """Means of the loss and of metrics over all samples, without gradients, in evaluation mode.

    Args:
        model: a Module; the modes of its modules are restored.
        loss: of an output and a target, a mean over the batch.
        batches: sequences whose last entry is the target.
        metrics: functions of an output and a target by name, means over the batch.

    Returns:
        ``val_loss`` and ``val_`` with each metric's name.

    Raises:
        DataError: there are no batches.

    Example:
        >>> import tinygrad_cuda as tc
        >>> model, x = tc.nn.Identity(), tc.ones(4, 2, device="cpu")
        >>> evaluate(model, tc.nn.MSELoss(), [(x, 3 * x), (x, x)])
        {'val_loss': 2.0}
    """
    return Losses(loss, None, None, model).evaluate("evaluate", model, batches, metrics)


class Losses:
    """How a batch becomes a loss: by output and target, or by the user's own code."""

    def __init__(
        self, loss: Loss | None, training_step: Step | None, half: DType | None, model: Any
    ) -> None:
        self.loss, self.training_step, self.half = loss, training_step, half
        self.kind = next((value.device.type for value in model.parameters()), "cpu")

    def compute(self, model: Any, batch: Any, metrics: Mapping[str, Loss]) -> dict[str, Tensor]:
        """The loss of a batch, and its metrics."""
        with autocast(self.kind, self.half) if self.half is not None else nullcontext():
            if self.training_step is not None:
                return {"loss": self.training_step(model, batch)}
            assert self.loss is not None  # fit has checked it
            *inputs, target = batch
            output = model(*inputs)
            losses = {"loss": self.loss(output, target)}
        return losses | {name: function(output, target) for name, function in metrics.items()}

    def evaluate(
        self, op: str, model: Any, batches: Iterable[Any], metrics: Mapping[str, Loss] | None
    ) -> dict[str, float]:
        """Means over all samples, without gradients, in evaluation mode; it restores the modes.

        Args:
            op: the public function, for errors.
            model: what is evaluated.
            batches: at least one.
            metrics: more means, by name.

        Raises:
            DataError: there is no batch.
        """
        modes = [(module, module.training) for module in model.modules()]
        model.eval()
        totals: dict[str, Any] = {}
        count = 0
        try:
            with gradient_mode(False):
                for batch in batches:
                    size = _size(batch)
                    for name, value in self.compute(model, batch, metrics or {}).items():
                        totals[name] = totals.get(name, 0.0) + value.float() * size
                    count += size
        finally:
            for module, training in modes:
                module.training = training
        if not count:
            raise DataError(op, "there is no batch", expect="at least one batch",
                            actual="none")  # fmt: skip
        return {f"val_{name}": float(total) / count for name, total in totals.items()}


def _size(batch: Any) -> int:
    """How many samples a batch has."""
    if isinstance(batch, Mapping):
        return _size(next(iter(batch.values())))
    return _size(batch[-1]) if isinstance(batch, list | tuple) else len(batch)
