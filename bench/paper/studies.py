"""What the paper did, as studies: studies.toml lists them."""

from __future__ import annotations

import functools
from pathlib import Path

from bench.studies import Study, read_studies


@functools.cache
def studies() -> dict[str, Study]:
    """Return the paper's studies by name, in the file's order."""
    return read_studies(Path(__file__).with_suffix(".toml"))
