"""The HTTP API: thin edges over the app. The tail serves every reader of a stream in this process."""
