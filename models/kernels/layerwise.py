"""Inference layer by layer on the whole graph, for networks that train on sampled parts of it (GraphSAINT)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from models.kernels.features import FeatureRows, fill_rows
from models.kernels.propagation import ScaledAdjacency


def run_layers(
    layers: Sequence[Any],
    features: FeatureRows,
    mean: ScaledAdjacency,
    nodes: Tensor,
    size: int,
    device: torch.device,
    finish: Callable[[Tensor], Tensor] = lambda rows: rows,
) -> Tensor:
    """Return `finish` of the last layer's output for these nodes, in a tensor with a row for every node of the graph.

    A layer is called with its input and, if its `order` is 1, with the mean of what the neighbours `send` of theirs.
    Only rows that the asked nodes depend on are computed, `size` at a time. Kept for all nodes, in main memory, is what
    is sent and what comes before a layer that reads neighbours; other layers follow row by row.
    """
    at = max((at for at, layer in enumerate(layers) if layer.order), default=0)
    first, *others = layers[at:]
    read = mean.with_neighbours(nodes) if first.order else nodes
    hidden = run_layers(layers[:at], features, mean, read, size, device) if at else None
    count, sent = mean.graph.num_nodes, None

    def inputs(chunk: Tensor) -> Any:
        return features.of(chunk).to(device) if hidden is None else hidden[chunk].to(device)

    def outputs(chunk: Tensor) -> Tensor:
        rows = first(inputs(chunk), None if sent is None else mean.rows(chunk, sent).to(device))
        for layer in others:
            rows = layer(rows)
        return finish(rows)

    if first.order:
        sent = fill_rows(count, read, size, lambda chunk: first.send(inputs(chunk)))
    return fill_rows(count, nodes, size, outputs)
