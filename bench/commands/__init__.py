"""What each verb does; `bench/cli.py` only says how it is typed."""
