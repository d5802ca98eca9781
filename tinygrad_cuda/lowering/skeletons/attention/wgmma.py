"""Text of attention by wgmma: the same kernels, whose products read shared memory by descriptor."""

from __future__ import annotations

from tinygrad_cuda.lowering.codegen.skeleton import fill
from tinygrad_cuda.lowering.skeletons.attention.mma import (
    DONE,
    MARKED,
    ZEROED,
    AttentionText,
    TileOperand,
)
from tinygrad_cuda.lowering.skeletons.attention.tiles import COPY, ITEMSIZE, stride

CUH = "attention_wgmma.cuh"
SWIZZLE = 128  # bytes of a row of a swizzled block
BLOCK = 64  # elements of such a row


class WarpgroupText(AttentionText):
    """The text of one kernel of two warpgroups."""

    @property
    def ahead(self) -> int:
        return self.tile.stages - (1 if self.name == "forward" else 2)

    def _target(self, operand: TileOperand) -> str:
        block = f"step / 8 * {operand.rows * SWIZZLE} + " if operand.width > BLOCK else ""
        return f"{block}row * {SWIZZLE} + ((step % 8) ^ (row % 8)) * {COPY}"

    def _text(self, section: str, **holes: object) -> str:
        sizes = {
            "columns": self.tile.columns,
            "stages": self.tile.stages,
            "slot": self._slot,
            "block_rows": self.tile.rows * SWIZZLE,
            "block_columns": self.tile.columns * SWIZZLE,
            "wgmma": f"tgc_wgmma_{self.unit}",
            "pack": f"tgc_pack_{self.unit}",
        }
        return fill(CUH, section, **{**sizes, **holes})

    def _products(self, total: str, a: str, b: str, pitch: int, width: int) -> str:
        """total = a b^T of tiles at two descriptors begins."""
        return self._text("products", sum=total, a=a, b=b, steps=width // 16)

    def _combine(self, total: str, factor: str, b: str, width: int) -> str:
        """total += factor b begins, whose rows are the columns of the packed factor."""
        return self._text("combine", sum=total, factor=factor, b=b, width=width)

    def _packed(self, factor: str, score: str) -> str:
        return self._text("packed", factor=factor, score=score, **self._pair(score))

    def _scaled(self) -> str:
        scale = "" if self._folds else self._filled("scale", factor=f"{self._factor_of_scores!r}f")
        return f"{scale}{self._mask()}"

    def _descriptors(self, second: bool) -> str:
        """Of the first 64 rows and columns of each operand."""
        d = self.q.shape[-1]
        text = self._text("descriptors", second=self.tile.columns * d * ITEMSIZE)
        if second:
            text += self._text("descriptor", rows=self.tile.rows * d * ITEMSIZE)
        return text

    def _forward(self) -> list[str]:
        """Products of a tile run during powers of another."""
        d, width = self.q.shape[-1], self.v.shape[-1]
        powers = self._text("powers", **self._powers())
        values = "columns_1 + ({} * @slot@ + step * 2048) / 16".replace("@slot@", str(self._slot))
        text = self._text(
            "forward",
            width=width,
            begin_scores=self._products("score", "rows_0", "columns_0 + turn", 0, d),
            begin_values=self._combine("value", "share", values.format("before"), width),
            begin_last=self._combine("value", "share", values.format("slot"), width),
            scores=f"{self._scaled()}{powers}{self._dropped(ZEROED)}",
            shares=self._packed("share", "score"),
        )
        end = self._values(width)
        staged = self._store(0, "value", "smem", stride(width), "1.0f") if 0 in self.stored else ""
        declare = self._filled("forward", width=width)
        return [self._descriptors(False), declare, text, end, "__syncthreads();", staged]

    def _gradient_loop(self, use: str) -> str:
        d, e = self.q.shape[-1], self.v.shape[-1]
        return self._text(
            "gradients",
            begin_scores=self._products("score", "rows_0", "columns_0 + turn", 0, d),
            begin_shares=self._products("share", "rows_1", "columns_1 + turn", 0, e),
            scores=self._scaled(),
            use=use,
        )

    def _use_of_rows(self, d: int) -> str:
        return self._text(
            "shares_of_rows",
            power=self._power("shift[i][q / 2]"),
            dropped=self._dropped(self._dropped_gradient),
            packed=self._packed("moved", "share"),
            combine=self._combine("by_query", "moved", "columns_0 + turn + step * 128", d),
        )

    def _queries(self) -> list[str]:
        d = self.q.shape[-1]
        use = self._use_of_rows(d)
        return [
            self._descriptors(True),
            f"float by_query[1][{d // 8}][4] = {{}};",
            f"unsigned moved[{self.tile.columns // 16}][4];",
            self._sums_of_rows(),
            self._gradient_loop(use),
            DONE,
            self._store(0, "by_query", "smem", stride(d), self._factor),
        ]

    def _keys(self) -> list[str]:
        d, e, steps = self.q.shape[-1], self.v.shape[-1], self.tile.columns // 16
        use = self._text(
            "shares_of_columns",
            power=self._power("shift"),
            sums=self._sums_offset,
            beyond_queries=self._beyond_queries,
            dropped=self._dropped(MARKED),
            by_share=self._by_share,
            packed_values=self._packed("weight", "score"),
            combine_values=self._combine("by_value", "weight", "columns_1 + turn + step * 128", e),
            packed_keys=self._packed("moved", "share"),
            combine_keys=self._combine("by_key", "moved", "columns_0 + turn + step * 128", d),
        )
        behind = f"smem + {self.tile.rows * stride(d)}"
        return [
            self._descriptors(True),
            f"float by_key[1][{d // 8}][4] = {{}}, by_value[1][{e // 8}][4] = {{}};",
            f"unsigned weight[{steps}][4], moved[{steps}][4];",
            self._gradient_loop(use),
            DONE,
            self._store(1, "by_key", "smem", stride(d), self._factor),
            self._store(2, "by_value", behind, stride(e), f"{self._dropout_scale!r}f"),
        ]
