"""The event loop: work that would block it runs in threads, and code without one uses a loop in a thread."""
