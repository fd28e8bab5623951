"""Benchmarks of Runlane against its peers, in one run on one machine, alternating.

Run them with `make bench`; no test asserts a duration. Compare ratios: absolute figures depend on the machine, the
ratio to a peer in the same run does not.
"""
