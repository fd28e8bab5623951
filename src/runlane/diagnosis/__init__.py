"""Checks of an installation: what may keep runs from being accepted or executed, each with its fix."""
