"""The one door to bench/paper/, which may be deleted: without it there are no studies of it and no sections."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bench.errors import UserError
from bench.studies import OWN_STUDIES, Study
from bench.text import nearest

if TYPE_CHECKING:
    from bench.report.evidence import Evidence
    from bench.report.results import Setting
    from bench.report.sections import Section


def has_paper() -> bool:
    """Whether the paper is part of this copy."""
    return (Path(__file__).parents[1] / "paper" / "__init__.py").is_file()


def studies() -> dict[str, Study]:
    """Return all studies by name."""
    if not has_paper():
        return OWN_STUDIES
    from bench.paper.studies import studies as known

    return {**known(), **OWN_STUDIES}


def find_study(name: str) -> Study:
    """Return the study of this name."""
    known = studies()
    found = known.get(name.strip().lower())
    if found is None:
        raise UserError(f"unknown study '{name}' (known: {', '.join(known)}).{nearest(name, known)}")
    return found


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
