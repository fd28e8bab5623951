"""Rate limits in the database: what operators set, and the slots of calls in flight."""
