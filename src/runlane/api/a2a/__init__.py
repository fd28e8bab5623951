"""A2A 1.x: other agents send messages to agents of Runlane. A task of A2A is a run, without further state."""
