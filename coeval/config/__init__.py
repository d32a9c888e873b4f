"""What a configuration says: read, checked whole, with keys kept apart from it."""
