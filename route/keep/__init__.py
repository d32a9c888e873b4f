"""State that outlives a request: accounts of keys, votes and conversations, in a database and between workers."""
