"""Maintenance: reaper, timers, schedules, retention, child runs, dependents, webhooks. Every process may run them."""
