"""A small shop that lets Runlane do its slow work."""
