"""The table from ONNX operators to functions of Tensors, a file a family."""

from __future__ import annotations

from tinygrad_cuda.onnx.operators import control, elementwise, layers, reductions, shaping
from tinygrad_cuda.onnx.operators.call import Operator

OPERATORS: dict[str, Operator] = {
    name: operator
    for family in (elementwise, shaping, reductions, layers, control)
    for name, operator in family.TABLE.items()
}
