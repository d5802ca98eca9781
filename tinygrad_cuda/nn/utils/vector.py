"""All parameters as one vector, and back."""

from __future__ import annotations

from collections.abc import Iterable

from tinygrad_cuda.core.errors import ShapeError
from tinygrad_cuda.tensors.shaping import cat
from tinygrad_cuda.tensors.tensor import Tensor


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """The elements of all parameters, one after the other.

    Example:
        >>> import tinygrad_cuda as tc
        >>> parameters_to_vector([tc.ones(2, 1, device="cpu"), tc.zeros(1, device="cpu")]).tolist()
        [1.0, 1.0, 0.0]
    """
    return cat([parameter.reshape(-1) for parameter in parameters])


def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Makes the parameters views of a vector, one after the other.

    What they were views of before keeps its values; a later write to the vector is seen in them.

    Raises:
        ShapeError: the vector has fewer or more elements than the parameters.
    """
    given = list(parameters)
    count = sum(parameter.numel() for parameter in given)
    if vec.numel() != count:
        raise ShapeError(
            "vector_to_parameters", "the vector does not fit", expect=f"{count} elements",
            actual=f"{vec.numel()} elements",
        )  # fmt: skip
    start = 0
    for parameter in given:
        part = vec[start : start + parameter.numel()]
        parameter.data = part.view_as(parameter).data
        start += parameter.numel()
