"""Model files are found by looking; names are forgiving; source hashes see meaning, not prose."""

import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench import registry
from bench.cards import Card, read_cards
from bench.errors import UserError
from bench.names import check_names
from bench.registry import Registry, models_in, scan, simplify, source_hash
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


def test_a_file_that_fails_when_it_is_imported_is_known_but_leaves_its_groups(package: Write) -> None:
    found = package(good=model_file("good"), bad=model_file("bad", "('b',)", extra="import nothing_of_this_name"))
    assert found.broken == {} and [card.name for card in found.select("gnn")] == ["bad", "good"]
    assert [model.name for model in found.resolve("gnn")] == ["good"]
    assert found.broken["bad"].startswith("zoo/bad.py cannot be imported: ModuleNotFoundError: ")
    assert list(found.models) == list(found.cards) == ["good"]
    for asked in ("bad", "B"):
        with pytest.raises(UserError, match=r"zoo/bad\.py cannot be imported"):
            found.resolve(f"good,{asked}")
    with pytest.raises(UserError, match=r"zoo/bad\.py cannot be imported"):
        package(good="").resolve("all")


# -- cards ------------------------------------------------------------------------------------------------------------


WRITTEN = {
    "several names at once": """
        from bench.model import Model, Recipe
        class Net(Model):
            name, title, group, revision, settings = "net", "Net", "gnn", 3, {"author": {"photo": {"patience": 9}}}
    """,
    "a parent and its constants in another file": """
        from dataclasses import dataclass
        from zoo.parent import COMMON, Config as Base, Parent as Other
        TABLE = {name: {**COMMON, "hidden": number} for name, number in {"photo": 4, "cs": 5}.items()}
        @dataclass(frozen=True)
        class Config(Base):
            depth: int = 2
            hidden: int = 8
        class Net(Other):
            name: str = "net"
            Config = Config
            settings = {"author": TABLE}
    """,
    "no Config and no group of its own": """
        from zoo.parent import Parent
        class Net(Parent):
            name = "net"
    """,
    "its parent's settings by name": """
        from zoo.parent import Parent
        class Net(Parent):
            name = "net"
            settings = {"other": {**Parent.settings["author"]}}
    """,
    "settings in a TOML file": """
        from bench.model import Model, read_settings
        class Net(Model):
            name = "net"
            settings = read_settings(__file__)
    """,
}
IN_DOUBT = {
    "a computed name": """
        from bench.model import Model
        class Net(Model):
            name = "".join("net")
            title = str.title(Model.title)
    """,
    "two parents": """
        from bench.model import Model
        class Extra: pass
        class Net(Extra, Model):
            name = "net"
    """,
    "a class that is made by a call": """
        from bench.model import Model
        Net = type("Net", (Model,), {"name": "net", "__module__": __name__})
    """,
    "a name that is given later": """
        from bench.model import Model
        class Net(Model):
            name = "other"
        Net.name = "net"
    """,
    "a class that depends on what is there": """
        import sys
        from bench.model import Model
        if sys.version_info:
            class Net(Model):
                name = "net"
    """,
}
PARENT = """
        from dataclasses import dataclass
        from bench.model import Model, Recipe, added
        COMMON = {"stop": "never", "hidden": 1}
        @dataclass(frozen=True)
        class Config(Recipe):
            hidden: int = 4
            late: int = added(1)
        class Parent(Model):
            name, group, title, settings = "parent", "gnn", "of both", {"author": {"photo": COMMON}}
            Config = Config
"""


@pytest.mark.parametrize("text", WRITTEN.values(), ids=WRITTEN)
def test_a_card_says_what_the_class_says_before_it_is_imported(package: Write, tmp_path: Path, text: str) -> None:
    (tmp_path / "zoo" / "net.toml").write_text("[author.every]\nhidden = 3\n[author.photo]\npatience = 5\n")
    found = package(net=text, parent=PARENT)
    card = found.card("net")
    assert "zoo.net" not in sys.modules and "zoo.parent" not in sys.modules
    assert card == Card.of(found.find("net")) and card.keys


@pytest.mark.parametrize("text", IN_DOUBT.values(), ids=IN_DOUBT)
def test_where_reading_leaves_a_doubt_the_file_is_imported(package: Write, text: str) -> None:
    found = package(net=text, other=model_file("unread"))
    assert "zoo.net" in sys.modules and "zoo.other" not in sys.modules
    assert found.find("net").__name__ == "Net" and list(found.cards) == ["net", "unread"]


def test_only_the_models_that_are_wanted_are_imported(package: Write) -> None:
    found = package(a=model_file("alpha"), b=model_file("beta"), c=model_file("gamma"))
    assert found.find("beta").name == "beta" and [model.name for model in found.resolve("gamma")] == ["gamma"]
    assert {name for name in sys.modules if name.startswith("zoo.")} == {"zoo.b", "zoo.c"}


def test_the_cards_of_the_real_models_say_what_the_classes_say() -> None:
    for name, model in registry.models().items():
        module = importlib.import_module(model.__module__)
        file = Path(str(module.__file__))
        assert read_cards(file, registry.PACKAGE) == list(map(Card.of, models_in(module))), name


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (("gnc", "digits", "author"), "unknown model 'gnc'. Did you mean 'gcn'?"),
        (("all", "phto", "author"), "no dataset or group 'phto'. Did you mean 'photo'?"),
        (("gcn", "digits", "autor"), "unknown settings 'autor'.*Did you mean 'author'?"),
        (("gat", "digits", "ogb"), "unknown settings 'ogb'"),
        (("gcn", None, "author", ["hiden=3"]), "--set hiden: .* Did you mean 'hidden'?"),
        ((None, "digits", "author", ["hidden"]), "--set hidden: write it as key=value"),
    ],
)
def test_what_was_mistyped_is_refused_by_the_names_alone(typed: tuple[Any, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_names(*typed)


LIGHT = """
import sys
from bench.errors import UserError
from bench.names import check_names

check_names("all,grand+", "all,digits", "tunedgnn", ["hidden=3"])
try:
    check_names("gnc", "photo", "author")
except UserError as error:
    print(error)
sys.argv[1:] = {arguments}
try:
    from bench.cli import main
    main()
finally:
    print("imported:", *{{"torch", "numba", "numpy", "pandas", "scipy", "sklearn"}} & set(sys.modules))
"""


@pytest.mark.parametrize("arguments", [["list"], ["--help"], ["run", "--help"], ["run", "--trils", "3"]], ids=" ".join)
def test_names_lists_and_refusals_import_nothing_heavy(arguments: list[str]) -> None:
    code = LIGHT.format(arguments=arguments)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("unknown model 'gnc'. Did you mean 'gcn'?"), done.stderr
    assert done.stdout.endswith("imported:\n"), done.stdout[-200:]
    assert ("| nagphormer+ " in done.stdout) == (arguments == ["list"])


def test_simplify_keeps_the_plus() -> None:
    assert simplify("GRAND+ ") == "grand+"
    assert simplify("Graph-SAINT_v.2") == "graphsaintv2"


def test_the_hash_of_a_file_is_the_same_on_every_version_of_python(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text("class Net(Model):\n    def scale(self, *, by=()):\n        return f'{self.size!r} times {by}'\n")
    assert hash_file(file, "") == "3d89efe0ab51c5c2cab9"


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
