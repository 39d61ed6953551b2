"""Tuning: Optuna searches a model's space under a budget; every trial is a cell like any other, on sealed splits."""
