"""HTTP API: routes over the app, and server-sent event streams, which share one reader of the database per process."""
