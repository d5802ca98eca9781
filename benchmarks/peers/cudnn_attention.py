"""cuDNN's attention through NVIDIA's own bindings, which have its deterministic gradient.

PyTorch calls the same library, but refuses it in deterministic mode. Needs
`pip install nvidia-cudnn-frontend`.
"""

from __future__ import annotations

import math
from importlib.util import find_spec
from typing import Any

import torch

from benchmarks.peers.program import Unavailable
from benchmarks.peers.pytorch_eager import Eager
from benchmarks.workload import Operation, Workload


def installed() -> bool:
    return find_spec("cudnn") is not None


class Graphs:
    """The graphs of causal attention over one shape in bfloat16: forward, and its gradient."""

    def __init__(self, like: torch.Tensor, deterministic: bool, trains: bool) -> None:
        import cudnn

        self.cudnn, self.like, self.handle = cudnn, like, cudnn.create_handle()
        cudnn.set_stream(handle=self.handle, stream=torch.cuda.current_stream().cuda_stream)
        rows = like.shape[:-1]
        self.stats = torch.empty((*rows, 1), device=like.device) if trains else None
        self.scale = 1 / math.sqrt(like.shape[-1])
        self.forward, self.named = self._forward()
        self.backward, self.gradient_names = self._backward(deterministic) if trains else (None, {})
        sizes = [g.get_workspace_size() for g in (self.forward, self.backward) if g is not None]
        self.workspace = torch.empty(max(sizes), device=like.device, dtype=torch.uint8)

    def _graph(self) -> Any:
        kinds = self.cudnn.data_type
        return self.cudnn.pygraph(
            io_data_type=kinds.BFLOAT16, intermediate_data_type=kinds.FLOAT,
            compute_data_type=kinds.FLOAT, handle=self.handle,
        )  # fmt: skip

    def _forward(self) -> tuple[Any, dict[str, Any]]:
        graph = self._graph()
        named = {name: graph.tensor_like(self.like) for name in "qkv"}
        named["o"], stats = graph.sdpa(
            name="forward", **named, generate_stats=self.stats is not None,
            attn_scale=self.scale, use_causal_mask=True,
        )  # fmt: skip
        self._output(named["o"], self.like)
        if self.stats is not None:
            self._output(stats, self.stats).set_data_type(self.cudnn.data_type.FLOAT)
            named["stats"] = stats
        return self._built(graph), named

    def _backward(self, deterministic: bool) -> tuple[Any, dict[str, Any]]:
        graph = self._graph()
        named = {name: graph.tensor_like(self.like) for name in ("q", "k", "v", "o", "dO")}
        named["stats"] = graph.tensor_like(self.stats)
        gradients = graph.sdpa_backward(
            name="backward", **named, attn_scale=self.scale, use_causal_mask=True,
            use_deterministic_algorithm=deterministic,
        )  # fmt: skip
        for name, gradient in zip(("dQ", "dK", "dV"), gradients):
            named[name] = self._output(gradient, self.like)
        return self._built(graph), named

    @staticmethod
    def _output(tensor: Any, like: torch.Tensor) -> Any:
        return tensor.set_output(True).set_dim(list(like.shape)).set_stride(list(like.stride()))

    def _built(self, graph: Any) -> Any:
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([self.cudnn.heur_mode.A, self.cudnn.heur_mode.FALLBACK])
        graph.check_support()
        graph.build_plans()
        return graph

    def run(self, graph: Any, named: dict[str, Any], values: dict[str, Any]) -> None:
        values = {named[name]: value for name, value in values.items()}
        graph.execute(values, self.workspace, handle=self.handle)


class CudnnAttention(Eager):
    """Forward, or forward and all gradients."""

    def __init__(self, workload: Workload, device: str, deterministic: bool) -> None:
        import cudnn

        super().__init__(workload, device)
        assert isinstance(workload, Operation)
        like = self.given[0].detach()
        try:
            self.graphs = Graphs(like, deterministic, workload.gradient is not None)
        except cudnn.cudnnGraphNotSupportedError as error:
            raise Unavailable(str(error)) from error
        self.cotangent = self.work.put(workload.cotangent(), workload.dtype)
        self.work.call = self.attend

    def attend(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        graphs = self.graphs
        values: dict[str, Any] = dict(zip("qkv", (x.detach() for x in inputs)))
        values["o"] = torch.empty_like(graphs.like)
        if graphs.stats is None:
            graphs.run(graphs.forward, graphs.named, values)
            return (values["o"],)
        values["stats"] = graphs.stats
        graphs.run(graphs.forward, graphs.named, values)
        gradients = {name: torch.empty_like(graphs.like) for name in ("dQ", "dK", "dV")}
        values |= gradients | {"dO": self.cotangent}
        graphs.run(graphs.backward, graphs.gradient_names, values)
        return (values["o"], *gradients.values())
