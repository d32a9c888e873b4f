"""What p2l, route and coeval share; nothing here knows of votes or models."""
