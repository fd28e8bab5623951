"""HTTP API: routes over the app; the tail serves every reader of a stream in this process."""
