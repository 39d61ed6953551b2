"""Model files are found by looking; names are forgiving; source hashes see meaning, not prose."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench import registry
from bench.errors import UserError
from bench.registry import Registry, scan, simplify, source_hash
from bench.source_code import hash_file

Write = Callable[..., Registry]


def model_file(name: str, aliases: str = "()", group: str = "gnn", extra: str = "") -> str:
    return f"""
        from bench.model import Model
        {extra}
        class Net(Model):
            name = {name!r}
            aliases = {aliases}
            group = {group!r}
    """


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Write a package of model files and scan it; calling it again rewrites and rescans."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # a rewritten file must not meet its predecessor's bytecode
    folder = tmp_path / "zoo"
    folder.mkdir()
    (folder / "__init__.py").touch()

    def write(**files: str) -> Registry:
        for stem, text in files.items():
            lines = text.splitlines()
            (folder / f"{stem}.py").write_text("\n".join(line.removeprefix("        ") for line in lines))
        forget()
        return scan("zoo")

    def forget() -> None:
        for name in [name for name in sys.modules if name.split(".")[0] == "zoo"]:
            del sys.modules[name]
        scan.cache_clear()
        hash_file.cache_clear()

    yield write
    forget()


def test_files_are_found_and_helpers_are_not_models(package: Write) -> None:
    found = package(
        alpha=model_file("alpha"),
        beta=model_file("beta", extra="from zoo.alpha import Net as Imported"),
        _hidden=model_file("hidden"),
        helper="def propagate(): return 1",
        abstract="from bench.model import Model\n        class Nameless(Model): pass",
    )
    assert list(found.models) == ["alpha", "beta"]
    assert found.broken == {}


def test_a_subclass_without_a_name_of_its_own_is_not_a_model(package: Write) -> None:
    text = model_file("alpha") + "\n        class Variant(Net):\n            revision = 2\n"
    assert package(alpha=text).models["alpha"].__name__ == "Net"


@pytest.mark.parametrize("typed", ["Foo+", "foo+", "FOOPLUS", "foo-plus", "foo_plus", " foo+ ", "f.o.o+"])
def test_case_and_punctuation_do_not_matter(package: Write, typed: str) -> None:
    found = package(foo=model_file("foo"), foo_plus=model_file("foo+", aliases="('fooplus',)"))
    assert found.find(typed).name == "foo+"
    assert found.find("foo").name == "foo"


def test_lists_and_groups(package: Write) -> None:
    found = package(
        a=model_file("alpha", group="gnn"),
        b=model_file("beta", group="transformer"),
        c=model_file("gamma", group="gnn"),
    )
    assert [model.name for model in found.resolve("gamma, alpha,gamma")] == ["gamma", "alpha"]
    assert [model.name for model in found.resolve("GNN")] == ["alpha", "gamma"]
    assert [model.name for model in found.resolve("beta,all")] == ["beta", "alpha", "gamma"]


def test_unknown_names_get_the_nearest(package: Write) -> None:
    found = package(a=model_file("propagator", aliases="('ppgt',)", group="scalable"))
    for typo, meant in [("propagater", "propagator"), ("pgt", "ppgt"), ("scaleable", "scalable")]:
        with pytest.raises(UserError, match=f"unknown model '{typo}'.*'{meant}'"):
            found.resolve(typo)
    with pytest.raises(UserError, match="Known: propagator"):
        found.find("zzzzzzzz")
    with pytest.raises(UserError, match="no model is named"):
        found.resolve(" , ")


@pytest.mark.parametrize(
    ("name", "aliases"), [("alpha", "()"), ("ALPHA", "()"), ("beta", "('al-pha',)"), ("beta", "('a',)")]
)
def test_duplicates_name_both_files(package: Write, name: str, aliases: str) -> None:
    with pytest.raises(UserError, match=r"zoo/first\.py and zoo/second\.py both register"):
        package(first=model_file("alpha", aliases="('a',)"), second=model_file(name, aliases=aliases))


def test_an_alias_that_repeats_the_name_is_harmless(package: Write) -> None:
    assert list(package(a=model_file("alpha", aliases="('Alpha', 'al-pha')")).models) == ["alpha"]


@pytest.mark.parametrize("name", ["all", "gnn"])
def test_a_model_may_not_be_called_like_a_group(package: Write, name: str) -> None:
    with pytest.raises(UserError, match=f"zoo/odd.py registers a model called '{name}'"):
        package(odd=model_file(name), other=model_file("other"))


def test_a_broken_file_harms_only_itself(package: Write) -> None:
    found = package(good=model_file("good"), bad_plus="raise RuntimeError('two\\nlines')", worse="def (")
    assert list(found.models) == ["good"]
    assert found.broken["bad_plus"] == "zoo/bad_plus.py cannot be imported: RuntimeError: two lines"
    assert "SyntaxError" in found.broken["worse"]
    assert [model.name for model in found.resolve("all")] == ["good"]
    for asked in ("bad+", "badplus", "bad-plus"):
        with pytest.raises(UserError, match=r"zoo/bad_plus\.py cannot be imported"):
            found.find(asked)


def test_simplify_keeps_the_plus() -> None:
    assert simplify("GRAND+ ") == "grand+"
    assert simplify("Graph-SAINT_v.2") == "graphsaintv2"


HELPER = "def scale():\n            return 2"
PLAIN = model_file("alpha", extra="from zoo.helper import scale")


def hash_of(package: Write, **files: str) -> str:
    return source_hash(package(**files).models["alpha"])


def test_prose_does_not_change_the_hash(package: Write) -> None:
    before = hash_of(package, alpha=PLAIN, helper=HELPER)
    commented = PLAIN.replace("class Net(Model):", 'class Net(Model):  # a comment\n            """Docs."""\n')
    documented = '"""What it does."""\n        def scale():\n            """Two."""\n            return 2  # two'
    assert hash_of(package, alpha=f'"""Paper."""\n{commented}', helper=documented) == before


def test_meaning_changes_the_hash(package: Write) -> None:
    before = hash_of(package, alpha=PLAIN, helper=HELPER, other="x = 1")
    own = PLAIN.replace("group = 'gnn'", "group = 'gnn'\n            revision = 2")
    assert hash_of(package, alpha=own) != before
    assert hash_of(package, alpha=PLAIN, other="x = 2") == before  # nobody imports it
    assert hash_of(package, helper=HELPER.replace("2", "3")) != before


def test_what_no_finished_cell_depends_on_does_not_change_the_hash(package: Write) -> None:
    before = hash_of(package, alpha=PLAIN, helper=HELPER)
    more = PLAIN.replace("from zoo.helper", "from bench.space import Whole\n        from zoo.helper")
    more = more.replace("group = 'gnn'", "group = 'gnn'\n            spaces = {'wide': {'patience': Whole(1, 9)}}")
    estimating = more + "\n            def estimate_memory(cls, graph, config):\n                return 1\n"
    assert hash_of(package, alpha=more) == before
    assert hash_of(package, alpha=estimating) == before
    assert hash_of(package, alpha=estimating.replace("estimate_memory", "estimate_disk")) == before
    assert hash_of(package, alpha=estimating.replace("estimate_memory", "unsupported")) != before


@pytest.mark.parametrize(
    "line",
    ["from zoo.helper import scale", "import zoo.helper", "from zoo import helper", "from . import helper",
     "from .helper import scale", "def late():\n            from zoo import helper"],
)  # fmt: skip
def test_every_way_to_import_is_followed_and_so_are_imports_of_imports(package: Write, line: str) -> None:
    files = {"alpha": model_file("alpha", extra=line), "helper": f"import zoo.deep\n        {HELPER}"}
    before = hash_of(package, **files, deep="x = 1")
    assert hash_of(package, deep="x = 2") != before
    assert hash_of(package, deep="x = 1") == before


def test_the_real_registry() -> None:
    """Whatever is in models/: every file imports and every name and alias leads to its model."""
    found = registry.scan()
    assert found.broken == {}
    assert found.models
    for name, model in registry.models().items():
        assert registry.find_model(name.upper()) is model
        assert all(registry.find_model(alias) is model for alias in model.aliases)
        assert len(source_hash(model)) == 20
    assert registry.resolve_models("all") == list(registry.models().values())
