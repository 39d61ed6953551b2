"""What every model must keep, tried on every model that the registry finds; nothing here knows any of them."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from graphs import ISOLATED, LONELY, random_graph, random_split, relabelled, training_view
from torch import Tensor
from torch.nn import functional

from bench import registry
from bench.graph import Graph, Split
from bench.model import Model, Recipe
from bench.prepared import PrepareCache
from bench.settings import resolve_settings
from bench.train import Training, train

MODELS = registry.models()
EPOCHS = 4

every_model = pytest.mark.parametrize("model_class", [pytest.param(model, id=name) for name, model in MODELS.items()])
both_kinds_of_features = pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])


def config_of(model_class: type[Model], **recipe: Any) -> Any:
    """The model's defaults with a short training; whatever else a test changes is a field of every recipe."""
    assert recipe.keys() <= {item.name for item in dataclasses.fields(Recipe)}
    return model_class.Config(**{"max_epochs": EPOCHS, **recipe})


def build(model_class: type[Model], graph: Graph, split: Split, config: Any, seed: int = 0) -> Model:
    """As a worker does it: training labels only, seeded before the preparation and again before the network."""
    seen = training_view(graph, split)
    assert model_class.unsupported(seen, config) is None
    torch.manual_seed(seed)
    prepared = model_class.prepare(seen, split, config, seed, PrepareCache())
    torch.manual_seed(seed)
    return model_class(seen, prepared, config)


def fit(model: Model, graph: Graph, split: Split, seed: int = 0) -> Training:
    torch.manual_seed(seed)
    return train(model, split, torch.from_numpy(graph.labels), model.config)


def scores(model: Model, nodes: Any, batch: int = 0) -> Tensor:
    model.eval()
    model.config = dataclasses.replace(model.config, evaluation_batch=batch)
    with torch.no_grad():
        return model.predict(torch.as_tensor(nodes))


def trained(model_class: type[Model], graph: Graph, split: Split, seed: int = 0, **recipe: Any) -> Model:
    model = build(model_class, graph, split, config_of(model_class, **recipe), seed)
    fit(model, graph, split, seed)
    return model


@functools.cache
def usual(model_class: type[Model], sparse: bool = False, **recipe: Any) -> Model:
    """Trained as `trained` does it on the graph and split that most tests take; they share it and must not train it."""
    graph = random_graph(sparse=sparse)
    return trained(model_class, graph, random_split(graph), **recipe)


def usual_bytes(model_class: type[Model]) -> bytes:
    return scores(usual(model_class), np.arange(60)).numpy().tobytes()


def test_there_are_models_and_none_is_broken() -> None:
    assert MODELS
    assert registry.scan().broken == {}


# -- learning ---------------------------------------------------------------------------------------------------------


@every_model
@both_kinds_of_features
def test_it_trains_and_lowers_its_loss(model_class: type[Model], sparse: bool) -> None:
    graph = random_graph(sparse=sparse)
    split = random_split(graph)
    config = config_of(model_class, schedule="constant", stop="never", max_epochs=40)
    model = build(model_class, graph, split, config)
    labels = torch.from_numpy(graph.labels)[split.train]
    before = float(functional.cross_entropy(scores(model, split.train), labels))
    result = fit(model, graph, split)
    after = float(functional.cross_entropy(scores(model, split.train), labels))
    assert result.epochs == 40 and result.updates >= 40
    assert after < 0.95 * before


@every_model
def test_the_same_seed_gives_the_same_bytes_and_another_does_not(model_class: type[Model]) -> None:
    graph = random_graph()
    split = random_split(graph)
    first, again, other = (scores(trained(model_class, graph, split, seed), np.arange(60)) for seed in (3, 3, 4))
    assert first.numpy().tobytes() == again.numpy().tobytes()
    assert not torch.equal(first, other)


@every_model
def test_a_cached_preparation_gives_the_same_bytes(model_class: type[Model], tmp_path: Path) -> None:
    graph = random_graph()
    split = random_split(graph)
    seen, config = training_view(graph, split), config_of(model_class)
    results = [usual_bytes(model_class)]  # nothing was cached
    for cache in (PrepareCache(tmp_path), PrepareCache(tmp_path)):
        torch.manual_seed(0)
        prepared = model_class.prepare(seen, split, config, 0, cache)
        torch.manual_seed(0)
        model = model_class(seen, prepared, config)
        fit(model, graph, split)
        results.append(scores(model, np.arange(60)).numpy().tobytes())
    assert results[0] == results[1] == results[2]


# -- predicting -------------------------------------------------------------------------------------------------------


@every_model
@both_kinds_of_features
def test_scores_depend_neither_on_the_batch_nor_on_the_order(model_class: type[Model], sparse: bool) -> None:
    graph = random_graph(sparse=sparse)
    model = usual(model_class, sparse, max_epochs=15, schedule="constant")
    expected = scores(model, np.arange(60))
    assert expected.shape == (60, graph.num_classes)
    assert float(expected.std(dim=0).max()) > 1e-3  # nodes do get different scores
    order = np.random.default_rng(1).permutation(60)
    for batch in (1, 7, 60, 1000):
        torch.testing.assert_close(scores(model, order, batch), expected[order], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(scores(model, order[:11]), expected[order[:11]], rtol=1e-5, atol=1e-5)


@every_model
def test_validation_scores_have_a_row_per_node(model_class: type[Model]) -> None:
    graph = random_graph()
    split = random_split(graph)
    model = build(model_class, graph, split, config_of(model_class)).eval()
    with torch.no_grad():
        assert model.validate(torch.from_numpy(split.val)).shape == (len(split.val), graph.num_classes)


@every_model
@both_kinds_of_features
def test_relabelling_the_nodes_relabels_the_scores(model_class: type[Model], sparse: bool) -> None:
    graph = random_graph(sparse=sparse)
    split = random_split(graph)
    model = usual(model_class, sparse, max_epochs=15, schedule="constant")
    order = np.random.default_rng(2).permutation(60)
    place = np.argsort(order)  # where each node has gone
    train_nodes, val_nodes, test_nodes = (np.sort(place[part]) for part in (split.train, split.val, split.test))
    moved_split = Split(train_nodes, val_nodes, test_nodes, "by hand", 0)
    moved = build(model_class, relabelled(graph, order), moved_split, model.config)
    moved.load_state_dict(model.state_dict())
    torch.testing.assert_close(scores(moved, np.arange(60)), scores(model, order), rtol=1e-4, atol=1e-4)


# -- hard graphs ------------------------------------------------------------------------------------------------------


@every_model
@both_kinds_of_features
def test_isolated_nodes_and_a_class_with_one_node_survive(model_class: type[Model], sparse: bool) -> None:
    graph = random_graph(sparse=sparse)
    split = random_split(graph)
    assert (graph.degrees[list(ISOLATED)] == 0).all() and (graph.labels == graph.labels[LONELY]).sum() == 1
    swapped = Split(split.test, split.val, split.train, "by hand", 0)  # the lonely class is then never trained on
    for parts in (split, swapped):
        model = trained(model_class, graph, parts)
        assert scores(model, np.arange(60)).isfinite().all()
        assert all(parameter.isfinite().all() for parameter in model.parameters())


@every_model
def test_a_single_training_node_is_enough_to_run(model_class: type[Model]) -> None:
    graph = random_graph()
    split = random_split(graph)
    model = trained(model_class, graph, Split(split.train[:1], split.val, split.test, "by hand", 0))
    assert scores(model, np.arange(60)).isfinite().all()


# -- labels and state -------------------------------------------------------------------------------------------------


@every_model
def test_only_the_labels_of_training_nodes_are_read(model_class: type[Model]) -> None:
    graph = random_graph()
    split = random_split(graph)
    config = config_of(model_class)
    shuffled = graph.labels.copy()
    hidden = np.concatenate([split.val, split.test])
    shuffled[hidden] = np.random.default_rng(0).permutation(shuffled[hidden])
    assert (shuffled != graph.labels).any()
    results = [usual_bytes(model_class)]  # which was shown the labels of training nodes
    for labels in (graph.labels, shuffled):
        torch.manual_seed(0)
        shown = graph.with_labels(labels)
        prepared = model_class.prepare(shown, split, config, 0, PrepareCache())
        torch.manual_seed(0)
        model = model_class(shown, prepared, config)
        fit(model, graph, split)
        results.append(scores(model, np.arange(60)).numpy().tobytes())
    assert results[0] == results[1] == results[2]


@every_model
def test_test_labels_shuffled_before_masking_change_nothing(model_class: type[Model]) -> None:
    graph = random_graph()
    split = random_split(graph)
    labels = graph.labels.copy()
    labels[split.test] = np.random.default_rng(0).permutation(labels[split.test])
    shuffled = graph.with_labels(labels)
    assert (labels != graph.labels).any()
    found = scores(trained(model_class, shuffled, split), np.arange(60))
    assert found.numpy().tobytes() == usual_bytes(model_class)


@every_model
def test_the_state_does_not_grow_with_the_graph(model_class: type[Model]) -> None:
    # a copy of the best state is taken again and again: what belongs to nodes must not be in it
    shapes = []
    for num_nodes in (60, 83):
        graph = random_graph(num_nodes=num_nodes)
        model = build(model_class, graph, random_split(graph), config_of(model_class))
        shapes.append({name: tuple(value.shape) for name, value in model.state_dict().items()})
    assert shapes[0] == shapes[1]


@every_model
def test_every_parameter_is_optimised_once(model_class: type[Model]) -> None:
    graph = random_graph()
    model = build(model_class, graph, random_split(graph), config_of(model_class))
    grouped = [id(parameter) for group in model.param_groups() for parameter in group["params"]]
    assert sorted(grouped) == sorted(id(parameter) for parameter in model.parameters() if parameter.requires_grad)


@every_model
def test_what_it_chose_and_what_it_estimates_can_be_recorded(model_class: type[Model]) -> None:
    graph = random_graph()
    config = config_of(model_class)
    choices = build(model_class, graph, random_split(graph), config).choices()
    assert all(isinstance(part, str) for pair in choices.items() for part in pair)
    estimate = model_class.estimate_memory(graph, config)
    assert estimate is None or estimate > 0


# -- declarations -----------------------------------------------------------------------------------------------------


@every_model
def test_it_says_what_it_is(model_class: type[Model]) -> None:
    for declared in (model_class.title, model_class.group, model_class.paper):
        assert declared and declared == declared.strip() and "\n" not in declared
    assert model_class.group in {"gnn", "scalable", "transformer"}
    assert model_class.revision >= 1
    assert vars(model_class).get("__doc__"), "the class has no docstring of its own"
    module = inspect.getmodule(model_class)
    assert module is not None and module.__doc__
    assert "Paper:" in module.__doc__ and "Settings:" in module.__doc__  # where it comes from, and its numbers


def names_a_device(source: str) -> list[int]:
    """The lines on which a device is named, other than to ask what kind of device something is on."""
    nodes = list(ast.walk(ast.parse(source)))
    asked = {
        part
        for node in nodes
        if isinstance(node, ast.Compare) and isinstance(node.left, ast.Attribute) and node.left.attr == "type"
        for part in node.comparators
    }
    named = [
        node
        for node in nodes
        if (isinstance(node, ast.Attribute) and node.attr in {"cuda", "mps", "is_cuda"})
        or (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and re.fullmatch(r"(cpu|cuda|mps|xpu)(:\d+)?", node.value)
            and node not in asked
        )
    ]
    return [node.lineno for node in named]


def test_a_device_may_be_asked_for_its_kind_but_not_chosen() -> None:
    assert names_a_device("if x.device.type != 'cpu': pass") == []
    assert names_a_device("x.to('cuda:0')\ny.cuda()\nz = 'cpu' == w.device") == [1, 2, 3]


@every_model
def test_its_file_chooses_no_device(model_class: type[Model]) -> None:
    assert names_a_device(Path(inspect.getfile(model_class)).read_text()) == []


@every_model
def test_its_configuration_is_a_frozen_recipe_of_plain_values(model_class: type[Model]) -> None:
    config = model_class.Config()
    assert isinstance(config, Recipe)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.max_epochs = 1  # type: ignore[misc]
    for name, value in dataclasses.asdict(config).items():
        assert value is None or isinstance(value, (bool, int, float, str, tuple)), name


@every_model
def test_its_settings_are_fields_of_its_configuration(model_class: type[Model]) -> None:
    fields = {item.name for item in dataclasses.fields(model_class.Config)}
    for lane, datasets in model_class.settings.items():
        for dataset, settings in datasets.items():
            assert settings.keys() <= fields, (lane, dataset)
            resolved = resolve_settings(model_class, dataset, lane)
            assert resolved.labels["settings"] == lane
            for key, value in settings.items():
                assert getattr(resolved.config, key) == value, (lane, dataset, key)


@every_model
def test_its_search_spaces_stand_in_the_class_where_the_source_hash_leaves_them_out(model_class: type[Model]) -> None:
    tree = ast.parse(Path(inspect.getfile(model_class)).read_text())
    constants = {name for node in tree.body for name in _assigned(node)}
    written = [node for node in ast.walk(tree) if "spaces" in _assigned(node)]
    assert written or "spaces" not in vars(model_class)
    names = {part.id for node in written for part in ast.walk(node.value) if isinstance(part, ast.Name)}  # type: ignore[attr-defined]
    assert not names & constants, "a constant of the file counts as source"


def _assigned(node: ast.AST) -> list[str]:
    targets = getattr(node, "targets", [getattr(node, "target", None)])
    return [target.id for target in targets if isinstance(target, ast.Name)]
