"""SAN: its encoder against torch's, its attention against dense formulas, gamma, chunks, signs, and settings."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from graphs import ISOLATED, ON_EDGES, dense_adjacency, dense_features, make_graph, random_graph, random_split
from test_edges import LargestTensor
from torch import Tensor, nn
from torch.nn import functional

from bench.graph import Graph
from bench.prepared import PrepareCache
from bench.space import admits
from models.kernels import edges, encoder_layer
from models.kernels.dropout import keep_positive
from models.kernels.encoder_layer import feed_forward, plain_feed_forward
from models.kernels.spectrum import lowest_eigenpairs
from models.san import SAN, SANConfig, SANLayer

NODES = torch.arange(60)
SMALL: dict[str, Any] = {"hidden": 16, "heads": 4, "layers": 2, "encoding_width": 8, "encoding_heads": 2}
SMALL |= {"encoding_feed_forward": 24, "frequencies": 6}


def build(graph: Graph, seed: int = 0, **settings: Any) -> SAN:
    config = SANConfig(**{**SMALL, **settings})
    torch.manual_seed(seed)
    return SAN(graph, SAN.prepare(graph, random_split(random_graph()), config, seed, PrepareCache()), config)


def with_random_weights(model: SAN, scale: float = 0.4) -> SAN:
    """Also the norms' parameters and statistics, which start at constants."""
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if value.is_floating_point():
                value.copy_(
                    torch.rand(value.shape) + 0.5 if "running_var" in name else torch.randn(value.shape) * scale
                )
    return model


# -- the positional encoding ------------------------------------------------------------------------------------------


def torch_encoder(encoding: nn.Sequential, config: SANConfig) -> nn.TransformerEncoder:
    """torch's own encoder, defaults and all, with our weights."""
    layer = nn.TransformerEncoderLayer(
        config.encoding_width, config.encoding_heads, config.encoding_feed_forward, batch_first=True
    )
    encoder = nn.TransformerEncoder(layer, config.encoding_layers, enable_nested_tensor=False)
    for theirs, ours in zip(encoder.layers, encoding[1:], strict=True):
        state = ours.state_dict()
        names = {"query_key_value": "self_attn.in_proj_", "output": "self_attn.out_proj.", "widen": "linear1."}
        names |= {"narrow": "linear2.", "attention_norm": "norm1.", "feed_forward_norm": "norm2."}
        theirs.load_state_dict(
            {f"{there}{kind}": state[f"{here}.{kind}"] for here, there in names.items() for kind in ("weight", "bias")}
        )
    return encoder.double()


def encoder_twin(encoding: nn.Sequential, config: SANConfig, pairs: Tensor) -> Tensor:
    """Pairs (entry, eigenvalue), lifted, encoded by torch's layers in float64 and summed."""
    encoder = torch_encoder(encoding, config).train(encoding.training)
    lift = encoding[0]
    lifted = pairs.double() @ lift.weight.double().T + lift.bias.double()
    return encoder(lifted).sum(dim=1)


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("rows_at_once", [1, 37, 1000])
def test_the_encoding_is_that_of_torchs_transformer(
    layers: int, rows_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = with_random_weights(build(random_graph(), encoding_layers=layers)).eval()
    monkeypatch.setattr(encoder_layer, "_WIDE_ENTRIES", rows_at_once * 24)
    expected = encoder_twin(model.encode, model.config, model.pairs)
    found = model.encode(model.pairs).sum(dim=1)
    assert found.shape == (60, 8)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        torch.testing.assert_close(model.encode(model.pairs).sum(dim=1), found, rtol=1e-6, atol=1e-6)


def test_the_encoders_gradients_are_those_of_torchs_transformer(monkeypatch: pytest.MonkeyPatch) -> None:
    model = with_random_weights(build(random_graph(), encoding_layers=2)).eval()
    monkeypatch.setattr(encoder_layer, "_WIDE_ENTRIES", 37 * 24)
    encoder = torch_encoder(model.encode, model.config).eval()
    slope = torch.randn(60, 8)
    (model.encode(model.pairs).sum(dim=1) * slope).sum().backward()
    lift = nn.Linear(2, 8).double()
    lift.load_state_dict(model.encode[0].state_dict())
    (encoder(lift(model.pairs.double())).sum(dim=1) * slope).sum().backward()
    ours = dict(model.encode.named_parameters())
    theirs = dict(encoder.named_parameters()) | {f"lift.{name}": value for name, value in lift.named_parameters()}
    pairs_of_names = {"0.weight": "lift.weight", "1.widen.weight": "layers.0.linear1.weight"}
    pairs_of_names |= {"1.query_key_value.weight": "layers.0.self_attn.in_proj_weight"}
    pairs_of_names |= {
        "2.narrow.bias": "layers.1.linear2.bias",
        "2.output.bias": "layers.1.self_attn.out_proj.bias",
    }
    pairs_of_names |= {"2.attention_norm.weight": "layers.1.norm1.weight"}
    for here, there in pairs_of_names.items():
        assert ours[here].grad is not None and theirs[there].grad is not None
        torch.testing.assert_close(ours[here].grad.double(), theirs[there].grad, rtol=2e-3, atol=1e-4, msg=here)


def test_the_encoder_starts_as_torchs_does() -> None:
    config = SANConfig()
    torch.manual_seed(0)
    ours = build(random_graph(), hidden=64, encoding_width=16, encoding_heads=4, encoding_feed_forward=2048).encode[1]
    theirs = nn.TransformerEncoderLayer(16, 4)
    assert (theirs.linear1.out_features, theirs.dropout.p, theirs.norm_first) == (2048, 0.1, False)
    assert (config.encoding_feed_forward, config.encoding_dropout) == (2048, 0.1)
    matching = [
        (ours.query_key_value.weight, theirs.self_attn.in_proj_weight),
        (ours.output.weight, theirs.self_attn.out_proj.weight),
        (ours.widen.weight, theirs.linear1.weight),
        (ours.narrow.weight, theirs.linear2.weight),
    ]
    for mine, reference in matching:
        assert mine.shape == reference.shape
        assert float(mine.detach().abs().max()) == pytest.approx(float(reference.detach().abs().max()), rel=0.1)
        assert float(mine.detach().std()) == pytest.approx(float(reference.detach().std()), rel=0.2)
    for mine, reference in (
        (ours.query_key_value.bias, theirs.self_attn.in_proj_bias),
        (ours.output.bias, theirs.self_attn.out_proj.bias),
    ):
        assert not mine.any() and not reference.any()


def linear_pair(inner: int = 24) -> tuple[nn.Linear, nn.Linear]:
    torch.manual_seed(0)
    return nn.Linear(8, inner), nn.Linear(inner, 8)


def gradients_of(function: Any, x: Tensor, *layers: nn.Linear) -> list[Tensor]:
    """The output, and the gradients of a random linear function of it."""
    leaves = [x.clone().requires_grad_(), *(parameter for layer in layers for parameter in layer.parameters())]
    for leaf in leaves:
        leaf.grad = None
    out = function(leaves[0], *layers)
    (out * torch.randn(out.shape, generator=torch.Generator().manual_seed(1))).sum().backward()
    return [out.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


@pytest.mark.parametrize("rate", [0.0, 0.4])
def test_blocks_are_the_formula_with_the_same_dropout_in_both_directions(
    rate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder_layer, "_WIDE_ENTRIES", 5 * 24)
    layers, x = linear_pair(), torch.randn(33, 8)
    torch.manual_seed(2)
    ours = gradients_of(lambda x, *both: feed_forward(x, *both, rate), x, *layers)
    torch.manual_seed(2)
    seed = int(torch.randint(2**32, ()))
    mask = torch.ones(33, 24)
    for first in range(0, 33, 5):
        block = mask[first : first + 5]
        if rate:
            keep_positive(block.view(-1).numpy(), int(rate * 2**32), 1 / (1 - rate), (seed + first) % 2**32)
    kept = (mask > 0).float().mean()
    assert float(kept) == 1.0 if rate == 0 else 0.52 < float(kept) < 0.68
    assert mask.unique(dim=0).shape[0] == (33 if rate else 1)  # no two rows lose the same
    twins = [layer.double() for layer in linear_pair()]
    expected = gradients_of(lambda x, a, b: b(a(x).relu() * mask), x.double(), *twins)
    assert len(ours) == len(expected) == 6
    for mine, reference in zip(ours, expected, strict=True):
        torch.testing.assert_close(mine.double(), reference, rtol=1e-4, atol=1e-5)


def test_the_plain_blocks_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder_layer, "_WIDE_ENTRIES", 5 * 24)
    layers, x = linear_pair(), torch.randn(33, 8)
    fused, plain = (
        gradients_of(lambda x, *both, how=how: how(x, *both, 0.0), x, *layers)
        for how in (feed_forward, plain_feed_forward)
    )
    for mine, reference in zip(fused, plain, strict=True):
        torch.testing.assert_close(mine, reference, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("how", [feed_forward, plain_feed_forward], ids=["fused", "plain"])
def test_only_a_block_of_the_wide_layer_exists(how: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder_layer, "_WIDE_ENTRIES", 4 * 200)
    x = torch.randn(60, 8).requires_grad_()
    with LargestTensor() as seen:
        how(x, *linear_pair(200), 0.5).sum().backward()
    assert seen.entries == 8 * 200  # the weights; the wide layer would be 60 x 200


def test_entries_of_a_node_are_scaled_to_length_one() -> None:
    graph = random_graph()
    values, vectors = lowest_eigenpairs(graph, 6, True, PrepareCache())
    model = build(graph)
    np.testing.assert_allclose(model.pairs[:, :, 1], np.tile(values, (60, 1)))
    lengths = np.linalg.norm(vectors, axis=1)
    others = np.setdiff1d(np.arange(60), ISOLATED)
    np.testing.assert_allclose(model.pairs[others, :, 0], vectors[others] / lengths[others, None], atol=1e-6)
    assert not model.pairs[list(ISOLATED), :, 0].any()  # no part in any of these: zero stays zero
    np.testing.assert_allclose(build(graph, normalize_entries=False).pairs[:, :, 0], vectors)
    assert values[0] == 0.0 and values[1] > 0  # the trivial one is among them


def test_a_graph_with_fewer_eigenpairs_than_asked_for() -> None:
    graph = make_graph(60, [(0, 1), (1, 2)])
    model = build(graph, frequencies=70)
    assert model.pairs.shape[1] <= 60
    assert model.eval()(NODES).isfinite().all()


# -- attention --------------------------------------------------------------------------------------------------------


def dense_attention(
    layer: SANLayer, hidden: Tensor, types: Tensor, adjacency: np.ndarray, gamma: float | None
) -> Tensor:
    """Heads side by side, by the definition: K ⊙ Q / √d ⊙ E per pair; `gamma` None is the sparse variant."""
    weights = {name: value.double() for name, value in layer.state_dict().items()}
    size = hidden.shape[1] // layer.heads
    count = len(hidden)
    out = []
    for head in range(layer.heads):
        rows = slice(head * size, (head + 1) * size)
        value = hidden @ weights["value.weight"][rows].T
        masks = {"real": adjacency, "fake": (1 - adjacency) * (1 - np.eye(count))}
        shares = {"real": 1.0} if gamma is None else {"real": 1 / (1 + gamma), "fake": gamma / (1 + gamma)}
        pairs = torch.zeros(count, count, dtype=torch.float64)
        for kind, share in shares.items():
            query, key = (hidden @ weights[f"{kind}.{part}.weight"][rows].T for part in ("query", "key"))
            edge = types[-1 if kind == "real" else 0] @ weights[f"{kind}.edge.weight"][rows].T
            vectors = key[None, :, :] * query[:, None, :] / np.sqrt(size) * edge
            pairs = pairs + share * vectors.sum(dim=2).clamp(-5, 5).exp() * torch.from_numpy(masks[kind])
        out.append(pairs @ value / (pairs.sum(dim=1, keepdim=True) + 1e-6))
    return torch.cat(out, dim=1)


def attended_by(model: SAN, hidden: Tensor) -> Tensor:
    """What the first layer's heads find, before anything follows."""
    layer, seen = model.layers[0], []
    layer.rest.forward = lambda nodes, attended: seen.append(attended) or attended
    layer(hidden, model.edges, model.edge_types.weight)
    return seen[0]


@pytest.mark.parametrize("attention", ["sparse", "full"])
@pytest.mark.parametrize("gamma", [0.0, 0.1, 2.0])
@pytest.mark.parametrize("at_once", [1, 4 * 60 * 7, 1 << 20])
def test_attention_is_the_dense_formula(
    attention: str, gamma: float, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edges, "PAIRS_AT_ONCE", at_once)
    graph = random_graph()
    model = with_random_weights(build(graph, attention=attention, gamma=gamma), 0.6)
    hidden = torch.randn(60, 16)
    expected = dense_attention(
        model.layers[0],
        hidden.double(),
        model.edge_types.weight.detach().double(),
        dense_adjacency(graph),
        None if attention == "sparse" else gamma,
    )
    torch.testing.assert_close(attended_by(model, hidden).detach().double(), expected, rtol=1e-4, atol=1e-5)


def test_a_vanishing_gamma_is_the_sparse_variant_up_to_its_normalisation() -> None:
    graph = random_graph()
    sparse = with_random_weights(build(graph)).eval()
    weights = sparse.state_dict()
    others = np.setdiff1d(np.arange(60), ISOLATED)
    distances = []
    for gamma in (0.0, 1e-8, 1e-3, 1.0):
        full = with_random_weights(build(graph, attention="full", gamma=gamma)).eval()
        shared = {name: value for name, value in weights.items() if name != "edge_types.weight"}
        full.load_state_dict(shared, strict=False)
        with torch.no_grad():
            full.edge_types.weight[-1] = sparse.edge_types.weight[0]
        hidden = torch.randn(60, 16, generator=torch.Generator().manual_seed(0))
        difference = (attended_by(full, hidden) - attended_by(sparse, hidden)).detach()
        distances.append(float(difference[others].abs().max()))
    assert distances[0] < 1e-6 and distances[1] < 1e-3 < 0.01 * distances[2] < 0.01 * distances[3], distances


def test_isolated_nodes_see_others_in_the_full_variant_only() -> None:
    graph = random_graph()
    hidden = torch.randn(60, 16)
    sparse = attended_by(build(graph), hidden)
    full = attended_by(build(graph, attention="full"), hidden)
    assert sparse.isfinite().all() and full.isfinite().all()
    assert not sparse[list(ISOLATED)].any()
    assert (full[list(ISOLATED)].abs().sum(dim=1) > 0).all()


@pytest.mark.parametrize("attention", ["sparse", "full"])
def test_gradients_reach_every_parameter(attention: str) -> None:
    model = with_random_weights(build(random_graph(), attention=attention)).train()
    functional.cross_entropy(model(NODES), torch.from_numpy(random_graph().labels)).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize("sparse", [False, True])
def test_features_stand_beside_the_encoding(sparse: bool) -> None:
    graph = random_graph(sparse=sparse)
    model = with_random_weights(build(graph)).eval()
    seen: list[Tensor] = []
    model.layers[0].register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    scores = model(NODES)
    features = torch.from_numpy(dense_features(graph).astype(np.float64))
    expected = torch.cat(
        [
            features @ model.embed.weight.double().T + model.embed.bias.double(),
            encoder_twin(model.encode, model.config, model.pairs),
        ],
        dim=1,
    )
    torch.testing.assert_close(seen[0].double(), expected, rtol=1e-4, atol=1e-4)
    hidden = expected.float()
    for layer in model.layers:
        hidden = layer(hidden, model.edges, model.edge_types.weight)
    torch.testing.assert_close(scores, model.classify(hidden), rtol=1e-3, atol=1e-3)


# -- training and declarations ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("flips", [True, False])
def test_signs_are_flipped_while_training_where_asked(flips: bool) -> None:
    model = build(random_graph(), sign_flips=flips)
    seen: list[Tensor] = []
    model.encode.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    model.train()
    for _ in range(5):
        model(NODES)
    assert all(torch.equal(pairs[:, :, 1], model.pairs[:, :, 1]) for pairs in seen)
    entries, original = [pairs[:, :, 0] for pairs in seen], model.pairs[:, :, 0]
    signs = {tuple((flipped * original).sum(dim=0).sign().tolist()) for flipped in entries}
    assert all(torch.equal(flipped.abs(), original.abs()) for flipped in entries)
    assert (len(signs) > 1) == flips
    model.eval()(NODES)
    assert torch.equal(seen[-1], model.pairs)


@pytest.mark.parametrize("setting", ["dropout", "input_dropout", "encoding_dropout"])
def test_dropout_acts_in_training_only(setting: str) -> None:
    rates = {"dropout": 0.0, "input_dropout": 0.0, "encoding_dropout": 0.0}
    model = build(random_graph(), sign_flips=False, norm="layer", **rates)
    assert torch.equal(model.train()(NODES), model(NODES))
    model = build(random_graph(), sign_flips=False, norm="layer", **{**rates, setting: 0.5})
    assert not torch.equal(model.train()(NODES), model(NODES))
    assert torch.equal(model.eval()(NODES), model(NODES))


def test_the_number_of_parameters_by_hand() -> None:
    # d = 20, C = 4, h = 16, encoding 8 wide with 24 inside
    encoder = (2 * 8 + 8) + (8 * 24 + 24) + (8 * 8 + 8) + (8 * 24 + 24) + (24 * 8 + 8) + 2 * (8 + 8)
    follows = (16 * 16 + 16) + (16 * 32 + 32) + (32 * 16 + 16) + 2 * (16 + 16)
    ends = (20 * 8 + 8) + encoder + (16 * 8 + 8) + (8 * 4 + 4) + (4 * 4 + 4)
    for attention, kinds in (("sparse", 1), ("full", 2)):
        expected = ends + kinds * 16 + 2 * ((3 * kinds + 1) * 16 * 16 + follows)
        found = sum(parameter.numel() for parameter in build(random_graph(), attention=attention).parameters())
        assert found == expected, attention


def test_the_record_says_which_variant_was_run() -> None:
    assert build(random_graph()).choices() == {"attention": "sparse", "edges": ON_EDGES}
    assert build(random_graph(), attention="full").choices()["attention"] == "full"


def test_the_defaults_follow_the_authors_where_they_say_something() -> None:
    assert SAN.settings == {}
    c = SANConfig()
    assert (c.attention, c.gamma, c.frequencies, c.normalize_entries, c.sign_flips) == ("sparse", 0.1, 10, True, True)
    assert (c.encoding_layers, c.encoding_width, c.encoding_heads) == (1, 16, 4)
    assert (c.optimizer, c.schedule, c.plateau_factor, c.plateau_patience) == ("adam", "plateau", 0.5, 10)
    assert c.learning_rate / c.final_learning_rate == pytest.approx(5e-4 / 1e-6)  # as many halvings as theirs


def test_the_search_space_holds_the_defaults_and_every_point_of_it_is_a_configuration() -> None:
    space = SAN.spaces["wide"]
    defaults = dataclasses.asdict(SANConfig())
    assert all(admits(domain, defaults[name]) for name, domain in space.items())
    assert all(hidden % heads == 0 for hidden in space["hidden"] for heads in space["heads"])  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"hidden": 20}, "heads"),
        ({"encoding_width": 18}, "encoding_heads"),
        ({"hidden": 16}, "encoding_width"),
        ({"gamma": -0.1}, "gamma"),
    ],
)
def test_impossible_configurations_are_refused(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        SANConfig(**settings)


def test_the_estimate_grows_with_what_costs_memory() -> None:
    graph = random_graph(num_nodes=300)
    few = SANConfig()
    for change in ({"layers": 4}, {"hidden": 128}, {"attention": "full"}):
        assert SAN.estimate_memory(graph, dataclasses.replace(few, **change)) > SAN.estimate_memory(graph, few)
