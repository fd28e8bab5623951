"""The queue: accept, claim, record, reap, order, retain runs; lanes and workers."""
