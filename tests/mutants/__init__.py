"""Planted bugs: a curated list of one-line bugs, and the tests that must catch each of them.

`make mutants` plants them one at a time in a copy of the tree. A bug that survives shows a promise without a test.
"""
