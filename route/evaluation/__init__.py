"""Routing measured on tables of graded answers: the router beside what a user would do instead."""

from __future__ import annotations

__all__: list[str] = []
