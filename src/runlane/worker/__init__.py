"""Worker: claims runs, executes tasks, renews its lease by heartbeats, and drains when it stops."""
