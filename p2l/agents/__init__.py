"""A door for agents: the skill that says which command serves which wish, and the tools of `p2l mcp`."""
