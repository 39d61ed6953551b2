"""The kept benchmark: how fast and how small NAGphormer is here, against the reference loop in one run."""
