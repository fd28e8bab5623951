"""Benchmarks of Runlane against its peers, in one run on one machine, alternating.

Run on purpose with `make bench`, never as timed tests. Figures are ratios: what a second is worth depends on the
machine, what a peer does in the same second does not.
"""
