"""Fills the hooks of the rooms below: gradients, realization and the backends.

Their defaults are the slow path, so that none of them imports what recognises.
"""

from __future__ import annotations

from tinygrad_cuda.backend.base import replays
from tinygrad_cuda.engine import realize
from tinygrad_cuda.engine.plan import cache
from tinygrad_cuda.graph import gradient
from tinygrad_cuda.replay import backward_template, plan_lookup
from tinygrad_cuda.replay.switches import switches


def fill() -> None:
    """Fills each hook by its switch, and drops what was made before."""
    templates, lookup = switches.backward_templates, switches.plan_lookup
    gradient.plain_pass = backward_template.templated_pass if templates else gradient.pass_by_rules
    realize.run_cached_plan = plan_lookup.run_cached_plan if lookup else realize.trace_always
    cache.keeps = switches.plan_cache
    replays.cuda_graphs = switches.cuda_graphs
    replays.graphs_by_address = switches.graphs_by_address
    replays.steady_runs = switches.steady_runs
    replays.multi_run_graphs = switches.multi_run_graphs
    cache.clear()
    backward_template.forget()
