"""Shared by p2l, route and coeval; nothing here depends on votes or models."""
