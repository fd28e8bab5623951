"""`python -m runlane` is the `runlane` command."""

from runlane.cli import main

main()
