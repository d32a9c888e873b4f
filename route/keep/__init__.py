"""What outlives a request: accounts of keys, votes, conversations, in a database and between workers."""
