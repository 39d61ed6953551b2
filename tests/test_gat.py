"""GAT against dense formulas: the whole network, its gradients, its three dropouts, and its settings."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from graphs import ISOLATED, dense_attention, dense_features, random_graph, random_split
from torch import Tensor
from torch.nn import functional

from bench.graph import Graph
from bench.prepared import PrepareCache
from bench.settings import resolve_settings
from bench.space import admits
from models.gat import GAT, AttentionLayer, GATConfig


def build(graph: Graph, seed: int = 0, **chosen: Any) -> GAT:
    config = GATConfig(**chosen)
    torch.manual_seed(seed)
    return GAT(graph, GAT.prepare(graph, random_split(graph), config, seed, PrepareCache()), config)


def with_random_weights(model: GAT) -> GAT:
    """Also the biases and the norms' parameters, which start at constants."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.5)
    return model


# -- the network ------------------------------------------------------------------------------------------------------


def dense_layer(graph: Graph, hidden: Tensor, weights: dict[str, Tensor], name: str, heads: int) -> Tensor:
    """One attention layer with its heads side by side, before the bias."""
    projected = hidden @ weights[f"{name}.weight"].T
    by_head = projected.view(len(hidden), heads, -1)
    reader = (by_head * weights[f"{name}.of_reader"]).sum(dim=2) + weights.get(f"{name}.score_bias", torch.zeros(()))
    return dense_attention(graph, projected, reader, (by_head * weights[f"{name}.of_read"]).sum(dim=2))


def normed(kind: str, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    if kind == "layer":
        x = x - x.mean(dim=1, keepdim=True)
        x = x / torch.sqrt((x**2).mean(dim=1, keepdim=True) + 1e-5)
    else:  # fresh running statistics: mean 0, variance 1
        x = x / math.sqrt(1 + 1e-5)
    return x * weight + bias


def dense_logits(graph: Graph, model: GAT, weights: dict[str, Tensor]) -> Tensor:
    """The whole network without dropout, in dense float64 matrices."""
    c = model.config
    hidden = torch.from_numpy(dense_features(graph).astype(np.float64))
    if c.normalize_features:
        hidden = functional.normalize(hidden, p=1.0, dim=1)
    zero = torch.zeros(())
    for at in range(c.layers if c.linear_head else c.layers - 1):
        following = dense_layer(graph, hidden, weights, f"attentions.{at}", c.heads)
        following = following + weights.get(f"attentions.{at}.bias", zero)
        if c.residual:
            following = following + hidden @ weights[f"residuals.{at}.weight"].T + weights[f"residuals.{at}.bias"]
        if c.norm != "none":
            following = normed(c.norm, following, weights[f"norms.{at}.weight"], weights[f"norms.{at}.bias"])
        negative = torch.zeros(()) if c.activation == "relu" else torch.exp(following.clamp(max=0)) - 1
        hidden = torch.where(following > 0, following, negative)
    if c.linear_head:
        return hidden @ weights["head.weight"].T + weights["head.bias"]
    out = dense_layer(graph, hidden, weights, "head", c.output_heads)
    return out.view(len(out), c.output_heads, -1).mean(dim=1) + weights.get("head.bias", zero)


VARIANTS = [
    pytest.param({"norm": norm, "residual": residual, "linear_head": head}, id=f"{norm}-{residual}-{head}")
    for norm, residual, head in itertools.product(["none", "layer", "batch"], [False, True], [False, True])
]


@pytest.mark.parametrize("chosen", VARIANTS)
@pytest.mark.parametrize("sparse", [False, True])
def test_forward_is_the_dense_formula(chosen: dict[str, Any], sparse: bool) -> None:
    graph = random_graph(sparse=sparse)
    other = {"bias": True, "activation": "elu"} if sparse else {"bias": False, "activation": "relu"}
    model = with_random_weights(build(graph, hidden=12, heads=3, output_heads=2, layers=3, **other, **chosen)).eval()
    weights = {name: value.double() for name, value in model.state_dict().items()}
    nodes = torch.randperm(60)[:23]
    expected = dense_logits(graph, model, weights)[nodes]
    torch.testing.assert_close(model(nodes).double(), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model.predict(nodes).double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("tuned", [False, True])
def test_gradients_are_dense_autograd(sparse: bool, tuned: bool) -> None:
    graph = random_graph(sparse=sparse)
    tuning: dict[str, Any] = {"norm": "layer", "residual": True, "linear_head": True, "activation": "relu"}
    quiet = {"dropout": 0.0, "attention_dropout": 0.0, "value_dropout": 0.0}
    model = with_random_weights(build(graph, hidden=12, heads=3, output_heads=2, **quiet, **(tuning if tuned else {})))
    leaves = {name: value.detach().double().requires_grad_() for name, value in model.named_parameters()}
    nodes = torch.randperm(60)[:30]
    loss = model.train().loss(nodes)
    expected = functional.cross_entropy(dense_logits(graph, model, leaves)[nodes], model.labels[nodes])
    loss.backward()
    expected.backward()
    torch.testing.assert_close(loss.double(), expected, rtol=1e-4, atol=1e-5)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad.double(), leaves[name].grad, rtol=1e-3, atol=1e-5, msg=name)


def test_the_authors_network_on_pubmeds_shape() -> None:
    graph = random_graph(num_features=500)
    graph = Graph(graph.name, graph.indptr, graph.indices, graph.features, graph.labels % 3, 3, graph.fingerprint)
    shapes = {name: tuple(value.shape) for name, value in build(graph, hidden=64, output_heads=8).state_dict().items()}
    assert shapes == {
        "attentions.0.weight": (64, 500),
        "attentions.0.of_reader": (8, 8),
        "attentions.0.of_read": (8, 8),
        "attentions.0.score_bias": (8,),
        "attentions.0.bias": (64,),
        "head.weight": (24, 64),
        "head.of_reader": (8, 3),
        "head.of_read": (8, 3),
        "head.score_bias": (8,),
        "head.bias": (3,),
    }


def test_weights_are_glorots_head_by_head() -> None:
    layer = AttentionLayer(300, 8, 20, GATConfig())
    for parameter, bound in ((layer.weight, math.sqrt(6 / 320)), (layer.of_read, math.sqrt(6 / 21))):
        assert 0.9 * bound < float(parameter.detach().abs().max()) <= bound
    assert layer.bias is not None and not layer.bias.any()


# -- the three dropouts -----------------------------------------------------------------------------------------------

QUIET: dict[str, Any] = {"dropout": 0.0, "attention_dropout": 0.0, "value_dropout": 0.0}


@pytest.mark.parametrize("which", QUIET)
@pytest.mark.parametrize("sparse", [False, True])
def test_each_dropout_acts_alone_and_in_training_only(which: str, sparse: bool) -> None:
    nodes = torch.arange(60)
    for layers in (1, 2):
        model = build(random_graph(sparse=sparse), layers=layers, **{**QUIET, which: 0.5})
        assert not torch.equal(model.train()(nodes), model(nodes))
        assert torch.equal(model.eval()(nodes), model(nodes))
    model = build(random_graph(sparse=sparse), **QUIET)
    assert torch.equal(model.train()(nodes), model.eval()(nodes))


@pytest.mark.parametrize("which", ["attention_dropout", "value_dropout"])
def test_coefficients_and_values_keep_their_expectation(which: str) -> None:
    # the output is linear in both; were the scores computed from dropped values, it would not be
    model = with_random_weights(build(random_graph(), layers=1, normalize_features=False, **{**QUIET, which: 0.5}))
    with torch.no_grad():
        model.head.of_read.mul_(4.0)  # type: ignore[operator,union-attr]
        quiet = model.eval()(torch.arange(60))
        model.train()
        torch.manual_seed(0)
        draws = torch.stack([model(torch.arange(60)) for _ in range(1500)])
    error = draws.std(dim=0) / math.sqrt(len(draws))
    assert ((draws.mean(dim=0) - quiet).abs() <= 5 * error + 1e-5).all()


def test_value_dropout_drops_values_and_attention_dropout_whole_edges() -> None:
    # a node without neighbours: its coefficient is dropped as one, its values one by one
    nodes = torch.tensor(ISOLATED)
    for which, together in (("attention_dropout", True), ("value_dropout", False)):
        model = with_random_weights(build(random_graph(), layers=1, bias=False, **{**QUIET, which: 0.5})).train()
        torch.manual_seed(0)
        dropped = torch.stack([model(nodes) == 0 for _ in range(50)])
        alike = (dropped.all(dim=2) | ~dropped.any(dim=2)).all()
        assert dropped.any() and not dropped.all() and bool(alike) == together


def test_input_dropout_can_be_left_to_the_hidden_layers() -> None:
    nodes = torch.arange(60)
    chosen = {**QUIET, "dropout": 0.5, "input_dropout": False}
    model = build(random_graph(), layers=1, **chosen)
    assert torch.equal(model.train()(nodes), model.eval()(nodes))
    model = build(random_graph(), layers=2, **chosen)
    assert not torch.equal(model.train()(nodes), model.eval()(nodes))


# -- recipe -----------------------------------------------------------------------------------------------------------


def test_weight_decay_acts_on_everything() -> None:
    [group] = build(random_graph()).param_groups()
    assert len(group["params"]) == 10 and "weight_decay" not in group


def test_author_settings() -> None:
    [name] = GAT.settings["author"]
    c: Any = resolve_settings(GAT, name).config
    assert (name, c.hidden, c.heads, c.output_heads, c.layers) == ("pubmed", 64, 8, 8, 2)
    assert (c.dropout, c.attention_dropout, c.value_dropout, c.input_dropout) == (0.6, 0.6, 0.6, True)
    assert (c.optimizer, c.learning_rate, c.weight_decay) == ("adam", 1e-2, 1e-3)
    assert (c.max_epochs, c.stop, c.patience) == (100_000, "both", 100)
    assert (c.activation, c.norm, c.residual, c.linear_head) == ("elu", "none", False, False)
    assert c.normalize_features and c.bias


def test_tuned_settings() -> None:
    tuned = {  # hidden, layers, dropout, learning rate, weight decay, norm, residual, epochs
        "pubmed": (512, 2, 0.5, 1e-2, 5e-4, "none", False, 500),
        "computer": (64, 2, 0.5, 1e-3, 5e-5, "layer", False, 1000),
        "photo": (64, 3, 0.5, 1e-3, 5e-5, "layer", True, 1000),
        "cs": (256, 1, 0.3, 1e-3, 5e-4, "layer", True, 1500),
        "physics": (256, 2, 0.7, 1e-3, 5e-4, "batch", True, 1500),
    }
    assert GAT.settings["tunedgnn"].keys() == tuned.keys()
    for name, expected in tuned.items():
        c: Any = resolve_settings(GAT, name, "tunedgnn").config
        found = (c.hidden, c.layers, c.dropout, c.learning_rate, c.weight_decay, c.norm, c.residual, c.max_epochs)
        assert found == expected, name
        assert (c.heads, c.attention_dropout, c.value_dropout) == (1, 0.0, 0.0)
        assert c.linear_head and c.activation == "relu" and c.stop == "never"
        assert not (c.bias or c.input_dropout)
        assert c.normalize_features == (name != "pubmed")  # there torch_geometric's NormalizeFeatures is switched off


def test_the_search_space_holds_the_tuned_settings() -> None:
    for chosen in GAT.settings["tunedgnn"].values():
        config = GATConfig(**chosen)
        assert all(admits(domain, getattr(config, name)) for name, domain in GAT.spaces["wide"].items())


def test_heads_must_divide_the_hidden_width() -> None:
    with pytest.raises(ValueError, match=r"hidden \(12\) must be a multiple of heads \(8\)"):
        GATConfig(hidden=12)
