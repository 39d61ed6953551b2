"""The last thing that the fork server imports: it notes what the models' files say at the time they are loaded.

A file that is edited during a run changes neither the workers' code nor, thanks to this, what they believe it to be.
"""

import sys
from pathlib import Path

from bench.registry import PACKAGE
from bench.source_code import hash_file

for name, module in list(sys.modules.items()):
    if name.startswith(f"{PACKAGE}.") and getattr(module, "__file__", None):
        hash_file(Path(str(module.__file__)), name.rpartition(".")[0])
