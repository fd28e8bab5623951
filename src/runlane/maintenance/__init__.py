"""Maintenance: reaper of lost workers, timers, retention, cancellation of child runs. Every process may execute them."""
