"""Files that deploy Runlane, and the programs that generate and check them."""
