"""Text of attention of float32 on matrix units: one product of tf32 numbers, or three."""

from __future__ import annotations

from tinygrad_cuda.lowering.codegen.skeleton import fill
from tinygrad_cuda.lowering.schedule.kernel_dag import Kernel
from tinygrad_cuda.lowering.skeletons.attention.mma import AttentionText
from tinygrad_cuda.lowering.skeletons.attention.tiles import TF32, AttentionPart, AttentionTile

CUH = "attention_tf32.cuh"
PAIR = "*reinterpret_cast<const tgc_vector<float, 2>*>"


class TensorFloatText(AttentionText):
    """The text of one kernel.

    Where products are exact, so are the rows' logarithms: scores are those of base e.
    """

    def __init__(self, kernel: Kernel, name: str, part: AttentionPart, tile: AttentionTile) -> None:
        super().__init__(kernel, name, part, tile)
        if tile.unit != TF32:
            self.base = 1.0

    def _filled(self, section: str, **holes: object) -> str:
        if self.tile.unit != TF32:
            holes = {"of_base_e": "", "exp": "tgc_exp", **holes}
        return super()._filled(section, **holes)

    def _text(self, section: str, **holes: object) -> str:
        sizes = {"groups": self.tile.groups, "columns": self.tile.columns}
        return fill(CUH, section, **{**sizes, **holes})

    def _products(self, total: str, a: str, b: str, pitch: int, width: int) -> str:
        steps = width // 8
        if self.tile.unit == TF32:
            return self._by_steps(total, a, b, pitch, width, steps)
        return self._text(
            "products",
            a=a,
            b=b,
            stride=pitch,
            stride_b=self.tile.stride(width),
            steps=steps,
            multiply_parts=self._multiply_parts(total),
        )

    def _multiply_parts(self, total: str) -> str:
        return self._text("multiply_parts", sum=total)

    def _combine(self, total: str, factor: str, b: str, width: int) -> str:
        split = self.tile.unit != TF32
        both = self._text("split_values") + self._multiply_parts(total)
        return self._text(
            "combine",
            factors=self._text(
                "factors_parts" if split else "factors",
                element=self._element(factor, f"{factor}[i][step][q % 2 * 2 + q / 2]"),
            ),
            multiply=both if split else self._text("multiply", sum=total),
            load_pair="tgc_load_pair" if split and len(self.part.results) == 2 else PAIR,
            b=b,
            stride=self.tile.stride(width),
            width=width,
        )

    @property
    def _logarithm(self) -> str:
        if self.tile.unit == TF32:
            return super()._logarithm
        return f"tgc_fma(tgc_log2(sum), 0.69314718f, largest[i][half]{self._times})"

    def _store(self, index: int, total: str, staged: str, pitch: int, factor: str) -> str:
        """A result's rows from registers into memory."""
        node = self.stored[index]
        return self._text(
            "store",
            sum=total,
            factor=factor,
            width=self.part.results[index],
            rows=self.row,
            position=self.row,
            extent=self.part.rows,
            pointer=self.params.write(node),
            index=self._row_index(index, self.row),
        )
