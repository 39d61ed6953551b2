"""What cells will take: seconds, memory, disk, and how many of them fit beside each other.

May import the spine and bench/datasets; only commands import it.
"""
