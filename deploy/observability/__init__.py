"""Alert rules, dashboards and the sample of a collector."""
