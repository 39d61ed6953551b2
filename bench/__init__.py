"""The harness: names become cells, cells become records, records become tables. It knows no model by name."""

__version__ = "0.1.0"
