"""How a model is trained, as fields with defaults; model files take all of this from bench/model.py.

Kept apart from it so that names and settings can be looked up without importing torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from bench.files import read_toml
from bench.stopping import Stop

Schedule = Literal["constant", "warmup-linear", "warmup-cosine", "plateau"]  # of the learning rate, see bench/train.py


def added(default: Any) -> Any:
    """A setting that came after records existed: while it has its default, no cell's key knows of it."""
    return field(default=default, metadata={"added": True})


def read_settings(file: str) -> dict[str, dict[str, dict[str, Any]]]:
    """Return lane → dataset → settings from the TOML file beside a model's file.

    A lane's table `every` holds what all of its datasets share.
    """
    lanes: dict[str, Any] = read_toml(Path(file).with_suffix(".toml"))
    for datasets in lanes.values():
        shared = datasets.pop("every", {})
        datasets.update({name: {**shared, **settings} for name, settings in datasets.items()})
    return lanes


@dataclass(frozen=True)
class Recipe:
    """How a model is trained; every model's Config extends it with its architecture.

    Names and defaults say which values are allowed (bench/settings.py refuses the others): a whole number is at least 1
    if its default is, otherwise at least 0; what ends in "dropout" is at least 0 and below 1; floats are finite.
    """

    optimizer: Literal["adam", "adamw"] = "adamw"  # adam couples weight decay with the gradient, adamw does not
    learning_rate: float = 1e-3  # the peak where there is a schedule
    weight_decay: float = 0.0  # where `param_groups` puts it
    schedule: Schedule = "constant"
    warmup_updates: int = 0  # warmup-*: updates until the peak is reached
    decay_updates: int = 0  # warmup-*: the update at which the final rate is reached
    final_learning_rate: float = 0.0  # warmup-*: the rate from then on; plateau: below it training ends
    clip_norm: float = 0.0  # gradient-norm clipping; 0 means none
    batch_size: int = 0  # training nodes per update; 0 means all of them
    evaluation_batch: int = 0  # nodes per chunk when predicting; 0 means all of them
    max_epochs: int = 1000  # training ends there if no rule ended it before
    evaluate_every: int = 1  # epochs between two looks at the validation nodes
    stop: Stop = "ranked"  # see bench/stopping.py
    patience: int = 50  # evaluations without progress before training ends; the window's length for "window"
    metric: str = added("accuracy")  # the dataset's: what stopping, pruning and tables go by (bench/metrics.py)
    plateau_factor: float = added(0.5)  # plateau: what the rate is multiplied by
    plateau_patience: int = added(10)  # plateau: evaluations without a lower loss that are put up with before that
