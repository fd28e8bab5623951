"""Worker: claims runs, executes them, renews its lease, and drains when it stops."""
