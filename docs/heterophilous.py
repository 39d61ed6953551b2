"""Two graphs with public masks as a plug-in: `--plugin docs/heterophilous.py --datasets minesweeper`."""

import os
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from bench.plugins import OwnDataset, RawGraph


class Minesweeper(OwnDataset):
    name, split_rule, metric = "minesweeper", "masks", "roc_auc"

    def read(self):
        file = np.load(Path(os.environ["BENCH_DATA"], "heterophilous", f"{self.name}.npz"))
        labels, edges = file["node_labels"], file["edges"].T
        adjacency = sp.coo_array((np.ones(edges.shape[1]), edges), shape=(len(labels), len(labels)))
        masks = tuple(file[f"{part}_masks"] for part in ("train", "val", "test"))
        return RawGraph(adjacency, file["node_features"], labels, masks)


class Chameleon(Minesweeper):
    name, metric = "chameleon_filtered", "accuracy"
