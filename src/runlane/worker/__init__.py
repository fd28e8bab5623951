"""The worker: claims runs, executes them, proves that it is alive, and leaves nothing behind when it stops."""
