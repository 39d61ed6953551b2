"""From records to what a reader sees: statistics, tables, figures, verdicts. Never trains."""
