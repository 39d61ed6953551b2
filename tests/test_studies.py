"""Studies: what each asks for, and that everything they name exists."""

from __future__ import annotations

import pytest

from bench.commands.paper import find_study
from bench.errors import UserError
from bench.paper.studies import studies
from bench.settings import field_types


def test_the_papers_studies_are_there() -> None:
    shown = {name: study.shows for name, study in studies().items()}
    assert shown == {
        "accuracy-small": "Table 2", "accuracy-large": "Table 3", "structural-encoding": "Table 4",
        "readout": "Figure 2", "hops": "Figure 3", "layers": "Figure 4", "augmentation-grid": "Figure 5",
        "augmentation-parts": "Table 5", "cost": "Table 6",
    }  # fmt: skip


@pytest.mark.parametrize("name", list(studies()))
def test_every_model_dataset_and_setting_exists(name: str) -> None:
    found = list(studies()[name].combinations())
    assert found
    for model, _, variant in found:
        assert variant.settings.keys() <= field_types(model).keys()


def test_sizes_worked_out_by_hand() -> None:
    counts = {name: len(list(study.combinations(study.everywhere))) for name, study in studies().items()}
    assert counts["accuracy-small"] == 14 * 6
    assert counts["accuracy-large"] == 5 * 3
    assert counts["structural-encoding"] == 2 * 9 * 2
    assert counts["readout"] == 2 * 9 * 3
    assert counts["hops"] == 2 * (3 + 3) * 9  # K = 4, 6, ..., 20
    assert counts["layers"] == 2 * (3 + 3) * 5
    assert counts["augmentation-grid"] == 9 * 3 * 4
    assert counts["augmentation-parts"] == 9 * 4
    assert counts["cost"] == 5 * (3 + 3)


def test_variants_say_what_they_set() -> None:
    grid = find_study("augmentation-grid")
    assert grid.varied == ("mask_ratio", "augment_probability")
    assert grid.variants[0].label == "mask_ratio=0.25, augment_probability=0.25"
    assert dict(find_study("hops").variants[-1].settings) == {"layers": 1, "hops": 20}
    assert [variant.label for variant in find_study("structural-encoding").variants] == [
        "structural_encoding=true", "structural_encoding=false",
    ]  # fmt: skip


def test_a_typo_gets_the_nearest_name() -> None:
    with pytest.raises(UserError, match="Did you mean 'readout'"):
        find_study("reedout")
