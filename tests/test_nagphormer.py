"""NAGphormer against an independent statement of its network, its published counts, and the laws it keeps."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from graphs import dense_normalized, random_graph, random_split
from torch import Tensor
from torch.nn import functional

from bench.graph import Graph
from bench.prepared import PrepareCache
from models.kernels.positional import laplacian_eigenvectors
from models.nagphormer import NAGphormer, NAGphormerConfig


def build(graph: Graph, seed: int = 0, spread: float = 0.0, **settings: Any) -> NAGphormer:
    """A model on this graph in evaluation mode; `spread` moves its weights away from the tiny initial ones."""
    config = NAGphormerConfig(**settings)
    prepared = NAGphormer.prepare(graph, random_split(graph), config, seed, PrepareCache())
    torch.manual_seed(seed)
    model = NAGphormer(graph, prepared, config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape), alpha=spread)
    return model.eval()


SMALL: dict[str, Any] = {"hidden": 16, "heads": 4, "hops": 3, "encoding_size": 5, "spread": 0.3}


# -- an independent statement of the network --------------------------------------------------------------------------


def layer_norm(x: Tensor, weights: dict[str, Tensor], name: str) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    scaled = centred / torch.sqrt((centred**2).mean(-1, keepdim=True) + 1e-5)
    return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def linear(x: Tensor, weights: dict[str, Tensor], name: str) -> Tensor:
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def restated_logits(inputs: Tensor, weights: dict[str, Tensor], layers: int, heads: int) -> Tensor:
    """One node's raw tokens (K + 1, d + s) to its logits, step by step, in float64."""
    x = linear(inputs, weights, "project")
    width = x.shape[1]
    for layer in range(layers):
        prefix = f"encoder.{layer}"
        normed = layer_norm(x, weights, f"{prefix}.attention_norm")
        q, k, v = linear(normed, weights, f"{prefix}.query_key_value").split(width, dim=1)
        attended = []
        for head in range(heads):
            own = slice(head * width // heads, (head + 1) * width // heads)
            scores = (q[:, own] / math.sqrt(width // heads)) @ k[:, own].T
            attended.append(functional.softmax(scores, dim=1) @ v[:, own])
        x = x + linear(torch.cat(attended, dim=1), weights, f"{prefix}.output")
        inner = linear(layer_norm(x, weights, f"{prefix}.feed_forward_norm"), weights, f"{prefix}.feed_forward.0")
        inner = 0.5 * inner * (1 + torch.erf(inner / math.sqrt(2)))  # the exact GELU
        x = x + linear(inner, weights, f"{prefix}.feed_forward.2")
    z = layer_norm(x, weights, "norm")
    scores = torch.stack([linear(torch.cat([z[0], hop]), weights, "hop_score") for hop in z[1:]])
    out = z[0] + (functional.softmax(scores, dim=0) * z[1:]).sum(dim=0)
    return linear(torch.relu(linear(out, weights, "classifier.0")), weights, "classifier.2")


@pytest.mark.parametrize(("layers", "sparse", "tokens"), [(1, False, "materialised"), (3, True, "projected")])
def test_forward_is_the_restated_network(layers: int, sparse: bool, tokens: str) -> None:
    graph = random_graph(sparse=sparse)
    model = build(graph, layers=layers, tokens=tokens, **SMALL)
    encoding = laplacian_eigenvectors(graph, 5, PrepareCache())
    inputs = np.concatenate([random_graph().features, encoding], axis=1)
    hops = [np.linalg.matrix_power(dense_normalized(graph), hop) @ inputs for hop in range(4)]
    raw = torch.from_numpy(np.stack(hops, axis=1))
    weights = {name: value.double() for name, value in model.state_dict().items()}
    nodes = torch.randperm(60)[:20]
    expected = torch.stack([restated_logits(raw[node], weights, layers, heads=4) for node in nodes])
    for result in (model(nodes), model.predict(nodes)):
        torch.testing.assert_close(result.double(), expected, rtol=1e-4, atol=1e-4)


def test_scores_do_not_depend_on_what_the_cache_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(random_graph(), **SMALL)
    seen: list[int] = []
    classify = model.classify
    monkeypatch.setattr(model, "classify", lambda tokens: (seen.append(len(tokens)), classify(tokens))[1])
    nodes = torch.randperm(60)
    whole = model.predict(nodes)
    monkeypatch.setattr("models.nagphormer._CACHED", 50 * 3 * 16 * 4)  # 50 nodes of four tokens, 32 in full rows
    torch.testing.assert_close(model.predict(nodes), whole, rtol=1e-5, atol=1e-5)
    assert seen == [60, 32, 28]


# -- published counts -------------------------------------------------------------------------------------------------


def test_parameters_of_the_pubmed_configuration() -> None:
    graph = random_graph(num_features=500)
    graph = Graph(graph.name, graph.indptr, graph.indices, graph.features, graph.labels % 3, 3, graph.fingerprint)
    model = build(graph, **NAGphormer.settings["author"]["pubmed"])
    assert sum(parameter.numel() for parameter in model.parameters()) == 2_501_124


@pytest.mark.parametrize("layers", [1, 4])
def test_initial_weights(layers: int) -> None:
    model = build(random_graph(), layers=layers)
    linears = {name: module for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    assert len(linears) == 4 + 4 * layers
    for name, linear_map in linears.items():
        assert not linear_map.bias.any(), name
        weight = linear_map.weight.detach()
        if weight.numel() >= 1000:
            spread = 5 / math.sqrt(2 * weight.numel())  # five standard errors of an estimated deviation
            assert float(weight.std()) == pytest.approx(0.02 / math.sqrt(layers), rel=spread), name
            assert abs(float(weight.mean())) < 0.1 * 0.02, name
    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            assert (module.weight == 1).all() and not module.bias.any() and module.eps == 1e-5


def test_author_settings_are_the_published_commands() -> None:
    published = {  # K, s, h, L, heads, peak learning rate
        "pubmed": (7, 15, 512, 1, 8, 1e-3),
        "corafull": (3, 10, 512, 1, 1, 1e-2),
        "computer": (3, 15, 512, 1, 8, 1e-3),
        "photo": (3, 10, 128, 1, 8, 1e-3),
        "cs": (3, 10, 512, 3, 8, 1e-3),
        "physics": (5, 10, 128, 1, 8, 1e-2),
        "aminer": (16, 10, 512, 3, 8, 1e-3),
        "reddit": (10, 10, 512, 1, 8, 1e-3),
        "amazon2m": (10, 3, 512, 1, 1, 1e-3),
    }
    assert NAGphormer.settings["author"].keys() == published.keys()
    for name, settings in NAGphormer.settings["author"].items():
        c = NAGphormerConfig(**settings)
        assert (c.hops, c.encoding_size, c.hidden, c.layers, c.heads, c.learning_rate) == published[name], name
        assert (c.dropout, c.attention_dropout, c.weight_decay, c.batch_size) == (0.1, 0.1, 1e-5, 2000), name
        assert (c.optimizer, c.schedule, c.stop, c.patience) == ("adamw", "warmup-linear", "ranked", 50), name
        assert (c.warmup_updates, c.decay_updates, c.final_learning_rate, c.max_epochs) == (400, 1000, 1e-4, 2000), name
        assert (c.readout, c.structural_encoding, c.clip_norm) == ("attention", True, 0.0), name


# -- laws -------------------------------------------------------------------------------------------------------------


def test_the_hop_scorers_bias_cancels() -> None:
    model = build(random_graph(), **SMALL)
    nodes = torch.arange(60)
    before = model(nodes)
    assert model.hop_score is not None
    with torch.no_grad():
        model.hop_score.bias.add_(7.0)
    torch.testing.assert_close(model(nodes), before, rtol=1e-4, atol=1e-5)
    with torch.no_grad():  # whereas its weights matter
        model.hop_score.weight.mul_(-1.0)
    assert not torch.allclose(model(nodes), before, rtol=1e-2, atol=1e-2)


def test_there_is_no_hop_encoding() -> None:
    model = build(random_graph(), layers=2, **SMALL)
    tokens = torch.randn(9, 4, 16)
    shuffled = tokens[:, [0, 3, 1, 2]]
    torch.testing.assert_close(model.classify(shuffled), model.classify(tokens), rtol=1e-4, atol=1e-5)
    own_moved = model.classify(tokens[:, [1, 0, 2, 3]])  # the node's own token is not one among equals
    assert not torch.allclose(own_moved, model.classify(tokens), rtol=1e-2, atol=1e-2)


def test_readouts_by_hand() -> None:
    tokens = torch.tensor([[[1.0, 2.0], [3.0, 0.0], [0.0, 5.0]]])
    graph = random_graph()
    tiny: dict[str, Any] = {"hidden": 2, "heads": 1, "hops": 2}
    assert build(graph, readout="single", **tiny).read_out(tokens).tolist() == [[1.0, 2.0]]
    assert build(graph, readout="sum", **tiny).read_out(tokens).tolist() == [[4.0, 7.0]]
    model = build(graph, readout="attention", **tiny)
    assert model.hop_score is not None
    with torch.no_grad():
        model.hop_score.weight.copy_(torch.tensor([[10.0, 10.0, math.log(3) / 3, 0.0]]))
    # scores: the node's part is the same for both hops; log 3 against 0: weights 3/4 and 1/4
    expected = [[1 + 0.75 * 3, 2 + 0.25 * 5]]
    torch.testing.assert_close(model.read_out(tokens), torch.tensor(expected), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("readout", ["single", "sum"])
def test_only_the_attention_readout_has_a_scorer(readout: str) -> None:
    model = build(random_graph(), readout=readout, **SMALL)
    assert not any("hop_score" in name for name in model.state_dict())
    assert model(torch.arange(60)).isfinite().all()


def test_dropout_stands_after_attention_and_after_the_feed_forward_block_and_nowhere_else() -> None:
    # with everything dropped that can be, both branches of both layers are gone, and nothing else is
    model = build(random_graph(), layers=2, dropout=1.0, attention_dropout=0.9, **SMALL).train()
    nodes = torch.arange(60)
    bare = model.sequences.project(nodes, model.project.weight) + model.project.bias
    assert torch.equal(model(nodes), model.classifier(model.read_out(model.norm(bare))))


@pytest.mark.parametrize("tokens", ["materialised", "projected"])
def test_a_batch_of_one_node(tokens: str) -> None:
    model = build(random_graph(), tokens=tokens, **SMALL)
    one, all_nodes = model(torch.tensor([23])), model(torch.arange(60))
    assert one.shape == (1, 4)
    torch.testing.assert_close(one[0], all_nodes[23], rtol=1e-4, atol=1e-5)
    model.train().loss(torch.tensor([23])).backward()


def test_without_structural_encoding_its_columns_are_gone() -> None:
    graph = random_graph()
    assert build(graph, encoding_size=6).project.weight.shape == (128, 26)
    bare = build(graph, encoding_size=6, structural_encoding=False)
    assert bare.project.weight.shape == (128, 20)
    assert bare.sequences.width == 20


@pytest.mark.parametrize(
    ("settings", "expected"),  # of 40 nodes with 6 features; K = 3, s = 5
    [
        ({"tokens": "materialised"}, 40 * 5 * 4 + 4 * 40 * (6 + 5) * 4),
        ({"tokens": "materialised", "token_storage": "float16"}, 40 * 5 * 4 + 4 * 40 * (6 + 5) * 2),
        ({"tokens": "materialised", "structural_encoding": False}, 4 * 40 * 6 * 4),
        ({"tokens": "projected"}, 40 * 5 * 4),
        ({"batch_size": 1}, 40 * 5 * 4 + 4 * 40 * (6 + 5) * 4),  # by itself it takes the cheaper way
    ],
)
def test_what_it_says_of_the_disk_is_what_it_keeps(settings: dict[str, Any], expected: int, tmp_path: Path) -> None:
    graph = random_graph(num_nodes=40, num_features=6, seed=3)
    config = NAGphormerConfig(hops=3, encoding_size=5, **settings)
    assert NAGphormer.estimate_disk(graph, config) == expected
    NAGphormer.prepare(graph, random_split(graph), config, 0, PrepareCache(tmp_path))
    assert sum(np.load(file, mmap_mode="r").nbytes for file in tmp_path.glob("*/*.npy")) == expected


def test_the_number_of_tokens_follows_the_hops() -> None:
    for tokens in ("materialised", "projected"):
        model = build(random_graph(), hops=4, tokens=tokens)
        assert model.sequences.project(torch.arange(7), model.project.weight).shape == (7, 5, 128)


@pytest.mark.parametrize(
    ("settings", "message"), [({"hops": 0}, "hops must be at least 1"), ({"hidden": 100, "heads": 8}, "multiple")]
)
def test_impossible_configurations_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NAGphormerConfig(**settings)
