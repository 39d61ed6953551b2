"""What tuning found, as files that people can read: the winner's settings, and all trials of a study.

`<results>/tuned/<model>-<dataset>.toml` is a settings lane (bench/lanes.py); `<results>/tuning/<study>.json` lists the
trials, from which the report draws its curves. Neither needs Optuna.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.errors import UserError
from bench.files import failing_clearly, replace_file
from bench.lanes import Winner


def write_winner(path: Path, winner: Winner) -> None:
    """Write the file in one piece."""
    lines = [
        f"# Settings that `python -m bench tune` found for {winner.found['model']} on {winner.found['dataset']}.",
        f"# Used by `python -m bench run --settings {path.parent.name}`; judge them on sealed splits only.",
    ]
    for name, table in (("settings", winner.settings), ("found", winner.found), ("budget", winner.budget)):
        lines += ["", f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in table.items())]
    _write(path, "\n".join(lines) + "\n")


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(str(value), ensure_ascii=False)


def write_study(path: Path, study: Mapping[str, Any], trials: Sequence[Mapping[str, Any]]) -> None:
    """The study's identity and its trials, one per line."""
    rows = ",\n".join(f"  {json.dumps(trial)}" for trial in trials)
    _write(path, f'{{"study": {json.dumps(study)},\n "trials": [\n{rows}\n]}}\n')


def read_studies(results: Path) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Identity and trials of every study below a results folder, by name."""
    found = []
    for path in sorted((results / "tuning").glob("*.json")):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            found.append((content["study"], content["trials"]))
        except (ValueError, KeyError) as error:
            raise UserError(f"tuning/{path.name} is not what `tune` writes ({error}); remove it") from error
    return found


def _write(path: Path, text: str) -> None:
    with failing_clearly(f"{path} cannot be written", "; make room and run again"):
        replace_file(path, lambda file: file.write(text.encode()))
