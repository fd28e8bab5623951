"""Operators: the methods of App that read and change runs, tags, threads and assistants. `Client` has the same ones."""
