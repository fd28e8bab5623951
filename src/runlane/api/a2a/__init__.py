"""A2A 1.x: other agents send messages to agents of Runlane. A task is a run and has no state beside it."""
