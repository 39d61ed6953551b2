"""The entries of the catalogue: nine datasets of the paper, a generated twin of each, and the embedded digits.

What reads or generates them is imported when it is used, so that names are known at once.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bench.datasets.catalogue import Dataset, PaperStatistics
from bench.datasets.sources import Layout, load_files, stamp_files

if TYPE_CHECKING:
    from bench.datasets.canonical import RawGraph
    from bench.graph import Graph

_NPZ_URL = "https://github.com/shchur/gnn-benchmark/raw/master/data/npz/"
_CORA_URL = "https://github.com/abojchevski/graph2gauss/raw/master/data/"
_PLANETOID_URL = "https://github.com/kimiyoung/planetoid/raw/master/data/"
_GRANDPLUS = "the links in the README of github.com/THUDM/GRAND-plus"
_SYMMETRIC = "symmetric union, unweighted, duplicates merged, self-loops as shipped"
_UNSEEN = "no copy was at hand when this was written: the reader was tested on small files of the documented format"
_SEEN = "counts, features and labels were compared with the paper and with published facts on the real files"


def reader(name: str) -> Callable[[list[Path]], RawGraph]:
    """Return a reader of this room, named module.function, that is imported when it reads."""
    module, _, function = name.partition(".")

    def read(paths: list[Path]) -> RawGraph:
        found: RawGraph = getattr(importlib.import_module(f"bench.datasets.{module}"), function)(paths)
        return found

    return read


_read_npz = reader("npz.read_graph_npz")


def _npz(folder: str, file: str, sha256: str) -> Layout:
    return Layout((f"{folder}/raw", folder, ""), (file,), _read_npz, _NPZ_URL, (sha256,))


def _grandplus(name: str) -> Layout:
    files = (f"{name}_adj.npz", f"{name}_feat.npy", f"{name}_labels.npy")
    return Layout((name, f"dataset/{name}", "dataset", ""), files, reader("grandplus.read_arrays"))


def _real(
    name: str,
    title: str,
    paper: PaperStatistics,
    layouts: tuple[Layout, ...],
    conventions: tuple[str, ...],
    fingerprint: str | None = None,
    aliases: tuple[str, ...] = (),
    rule: str = "uniform-60/20/20",
    obtain: str = "",
) -> Dataset:
    return Dataset(
        name=name,
        title=title,
        groups=("small" if rule.startswith("uniform") else "large", "all"),
        split_rule=rule,
        settings_name=name,
        load=partial(load_files, name, layouts, paper.classes),
        stamp=partial(stamp_files, layouts),
        aliases=aliases,
        paper=paper,
        layouts=layouts,
        obtain=obtain,
        conventions=(_SYMMETRIC, *conventions),
        checked=_SEEN if fingerprint else _UNSEEN,
        fingerprint=fingerprint,
    )


_PUBMED_FILES = {
    "x": "fbe9cb5c47200d1b7769a26e579be3b7130b556831f9d850e77c4c74f2599b33",
    "y": "e6c807633307a07ed659249006536a147c7999c797f11a2560752990181b41b3",
    "tx": "4eb5f5d0f30f26497eb0ac6ac9719d09c67e284f1ed0385c93f3ef27a671da3d",
    "ty": "ee2e0d4819d9fbcc403689c3bf2e49face401b605932f093bc58ab6461130fdd",
    "allx": "508e538e2abdccdd54c4d3e9f49d638b4af7107d85845f66ddea5a5152658b7e",
    "ally": "0c37bbe3b5014ec365e9d393cf4791925e5ed94fb194305d74f064a8d7b50f0e",
    "graph": "5b89f0036ca22909471f1e6558eb42fa06e0c730a577bde5b058b40638f81dc9",
    "test.index": "b101d421688bbaecbd82e8a18f1e282378d6830f3a37666f28ebc47f844341b5",
}

_REAL = (
    _real(
        "pubmed",
        "Pubmed",
        PaperStatistics(
            19_717, 44_324, 500, 3, "each undirected edge once, the 3 self-loops left out", counting="undirected"
        ),
        (
            Layout(
                ("PubMed/raw", "Pubmed/raw", "pubmed/raw", "PubMed", ""),
                tuple(f"ind.pubmed.{part}" for part in _PUBMED_FILES),
                reader("planetoid.read_pubmed"),
                _PLANETOID_URL,
                tuple(_PUBMED_FILES.values()),
            ),
        ),
        (
            "test nodes are put at the places that test.index names",
            "features (TF-IDF) divided by their row sums, as DGL does and PyG does not",
        ),
        fingerprint="553990f5f312b531409acd122027c5a1",
        aliases=("pumbed",),
    ),
    _real(
        "corafull",
        "CoraFull",
        PaperStatistics(19_793, 126_842, 8_710, 70, "each undirected edge twice: the entries as stored"),
        (
            # PyG's CitationFull("Cora") calls it cora; Planetoid's small Cora consists of other files
            Layout(
                ("cora/raw", "CoraFull/cora/raw", "CoraFull/raw"),
                ("cora.npz",),
                _read_npz,
                _CORA_URL,
            ),
            Layout(("CoraFull/raw", "CoraFull", "cora_full", ""), ("cora_full.npz",), _read_npz),
        ),
        ("the raw file stores each edge one way; feature values as shipped, not turned into zeros and ones",),
        aliases=("cora-full", "cora_full"),
    ),
    _real(
        "computer",
        "Computer",
        PaperStatistics(13_752, 491_722, 767, 10, "each undirected edge twice: the entries as stored"),
        (
            _npz(
                "Computers",
                "amazon_electronics_computers.npz",
                "c6884ab186f0164a28c4eff3b0d475d34e130943508e959a37ca8287fab27a4d",
            ),
        ),
        ("the raw file stores most edges one way; features are zeros and ones as shipped",),
        fingerprint="e8796ca936ddb1591061162b17c683d4",
        aliases=("computers", "amazon-computers", "amazon-computer"),
    ),
    _real(
        "photo",
        "Photo",
        PaperStatistics(
            7_650, 238_163, 745, 8, "each undirected edge twice plus the one self-loop: the stored entries"
        ),
        (
            _npz(
                "Photo",
                "amazon_electronics_photo.npz",
                "bfd3ee29622e8394c100621ee00537d738b606ecd06d513c7ceb1cd9dc7f1ef0",
            ),
        ),
        ("the raw file stores most edges one way; features are zeros and ones as shipped",),
        fingerprint="7e8e8fba1bb455f38ad06fbed4b305d4",
        aliases=("photos", "amazon-photo"),
    ),
    _real(
        "cs",
        "CS",
        PaperStatistics(18_333, 163_788, 6_805, 15, "each undirected edge twice: the entries as stored"),
        (_npz("CS", "ms_academic_cs.npz", "7bbda0ec297bb44efc712cc59f9e9a6c9ac959e5c4848e311bc7e011b0be5753"),),
        ("features are word counts as DGL keeps them; PyG turns them into zeros and ones",),
        fingerprint="661bad36198603e0e290275b22dca75f",
        aliases=("coauthor-cs",),
    ),
    _real(
        "physics",
        "Physics",
        PaperStatistics(34_493, 495_924, 8_415, 5, "each undirected edge twice: the entries as stored"),
        (_npz("Physics", "ms_academic_phy.npz", "16df58ffe9c5d6e73220f42cc5a9f7056d2f7d076d779d9d73f1d2470f9e6592"),),
        ("features are word counts as DGL keeps them; PyG turns them into zeros and ones",),
        fingerprint="f120dbffaa2ec7722f4bc5c7ab3c8bec",
        aliases=("coauthor-physics",),
    ),
    _real(
        "aminer",
        "AMiner-CS",
        PaperStatistics(
            593_486, 6_217_004, 100, 18, "published without saying whether an edge counts once or twice", "unknown"
        ),
        (
            Layout(
                ("aminer", "dataset/aminer", "dataset", ""),
                ("aminer.adj.sp.pkl", "aminer.features.pkl", "aminer.labels.pkl"),
                reader("grandplus.read_aminer"),
            ),
        ),
        ("each feature column brought to mean 0 and deviation 1 over all nodes, as the official code does",),
        aliases=("aminer-cs", "aminercs"),
        rule="per-class-20/30",
        obtain=f"aminer.zip, of which there is no second source, from {_GRANDPLUS}",
    ),
    _real(
        "reddit",
        "Reddit",
        PaperStatistics(232_965, 11_606_919, 602, 41, "each undirected edge once", counting="undirected"),
        (
            _grandplus("reddit"),
            Layout(
                ("Reddit2/raw", "Reddit2", "reddit2/raw"),
                ("adj_full.npz", "feats.npy", "class_map.json"),
                reader("copies.read_reddit2"),
            ),
        ),
        ("feature values as shipped",),
        aliases=("reddit2",),
        rule="per-class-20/30",
        obtain=f"reddit.zip from {_GRANDPLUS}, or PyG's Reddit2 (Reddit2/raw/adj_full.npz; not its Reddit, which has "
        "five times the edges)",
    ),
    _real(
        "amazon2m",
        "Amazon2M",
        PaperStatistics(2_449_029, 61_859_140, 100, 47, "each undirected edge once", counting="undirected"),
        (
            _grandplus("Amazon2M"),
            Layout(
                ("ogbn_products/raw", "ogbn-products/raw", "products/raw"),
                ("edge.csv.gz", "node-feat.csv.gz", "node-label.csv.gz"),
                reader("copies.read_ogbn_products"),
            ),
        ),
        ("feature values as shipped",),
        aliases=("amazon-2m", "ogbn-products", "products"),
        rule="total-20/30",
        obtain=f"Amazon2M.zip from {_GRANDPLUS}, or OGB's copy of the same graph (ogbn_products/raw/edge.csv.gz)",
    ),
)


def _load_twin(name: str, root: Path | None) -> Graph:
    from bench.datasets import twins
    from bench.datasets.canonical import check_graph

    return check_graph(twins.generate_twin(name), name)


def _stamp_twin(root: Path | None) -> str:
    from bench.datasets import twins

    return f"twin v{twins.GENERATOR_VERSION}"


def _twin_of(dataset: Dataset) -> Dataset:
    name = f"{dataset.name}-twin"
    return replace(
        dataset,
        name=name,
        title=f"{dataset.title} (twin)",
        groups=tuple(f"{group}-twin" for group in dataset.groups),
        load=partial(_load_twin, name),
        stamp=_stamp_twin,
        aliases=tuple(f"{alias}-twin" for alias in dataset.aliases),
        is_twin=True,
        layouts=(),
        obtain="",
        conventions=(f"generated: the counts of {dataset.title}; costs measured on it stand, accuracies do not",),
        checked="the generator's tests hold it to the counts",
        fingerprint=None,
    )


def _load_digits(root: Path | None) -> Graph:
    from bench.datasets.digits import load_digits_graph

    return load_digits_graph()


def _stamp_digits(root: Path | None) -> str:
    from bench.datasets.digits import stamp_digits

    return stamp_digits()


_DIGITS = Dataset(
    name="digits",
    title="Digits (k-NN graph)",
    groups=(),
    split_rule="uniform-60/20/20",
    settings_name="digits",
    load=_load_digits,
    stamp=_stamp_digits,
    aliases=("digit",),
    conventions=(
        "scikit-learn's 1,797 handwritten digits, pixel values divided by 16",
        "an edge where one image is among the 8 nearest of the other; ties go to the lower number",
    ),
    fingerprint="6f845eec78d3cb4ad226ef47c3fdbdd2",
    checked="embedded: not a dataset of the paper",
)

ENTRIES: tuple[Dataset, ...] = (*_REAL, *(_twin_of(dataset) for dataset in _REAL), _DIGITS)
