"""Text of attention of float32 by multiply-adds of float32 units."""

from __future__ import annotations

from tinygrad_cuda.lowering.codegen.skeleton import fill
from tinygrad_cuda.lowering.skeletons.attention.tf32 import TensorFloatText

CUH = "attention_simt.cuh"


class FloatText(TensorFloatText):
    """The text of one kernel."""

    def _simt(self, section: str, **holes: object) -> str:
        sizes = {"groups": self.tile.groups, "columns": self.tile.columns}
        return fill(CUH, section, **{**sizes, **holes})

    def _products(self, total: str, a: str, b: str, pitch: int, width: int) -> str:
        stride = self.tile.stride(width)
        return self._simt(
            "products", sum=total, a=a, b=b, stride=pitch, stride_b=stride, steps=width // 4
        )

    def _combine(self, total: str, factor: str, b: str, width: int) -> str:
        element = f"{factor}[i][column / 8][half * 2 + column % 2]"
        return self._simt(
            "combine",
            sum=total,
            element=self._element(factor, element),
            b=b,
            stride=self.tile.stride(width),
            width=width,
        )
