"""Three router replicas on PostgreSQL and Redis, whose processes are killed; and what these add to a request."""
