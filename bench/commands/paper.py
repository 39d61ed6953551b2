"""The one door to bench/paper/, which may be deleted: without it there are no studies and no sections of its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bench.errors import UserError

if TYPE_CHECKING:
    from bench.paper.studies import Study
    from bench.report.evidence import Evidence
    from bench.report.results import Setting
    from bench.report.sections import Section

NO_STUDIES = "there are no studies: bench/paper/ is not here"


def has_paper() -> bool:
    """Whether the paper is part of this copy."""
    return (Path(__file__).parents[1] / "paper" / "__init__.py").is_file()


def studies() -> dict[str, Study]:
    """Return all studies by name."""
    if not has_paper():
        return {}
    from bench.paper.studies import studies as known

    return known()


def find_study(name: str) -> Study:
    """Return the study of this name."""
    if not has_paper():
        raise UserError(NO_STUDIES)
    from bench.paper.studies import find_study as find

    return find(name)


def published_accuracy(model: str, dataset: str) -> str:
    """Return what the paper prints for a model on a dataset, nothing where there is no such number."""
    if not has_paper():
        return ""
    from bench.paper.numbers import published_accuracy as look_up

    return look_up(model, dataset)


def paper_sections(evidence: Evidence, setting: Setting) -> list[Section]:
    """Return what the paper adds to a report."""
    if not has_paper():
        return []
    from bench.paper.sections import paper_sections as sections

    return sections(evidence, setting)
