"""Triggers: stored events are matched with the triggers of their tenant, evaluated, and become runs."""
