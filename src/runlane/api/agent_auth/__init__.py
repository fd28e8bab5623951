"""Auth modules of LangGraph projects: they authenticate the users of the agent server and decide what they may do."""
