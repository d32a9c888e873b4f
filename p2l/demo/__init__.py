"""The demo: boards of real LLMs, a model trained on real votes, served, routed to, and taught a new LLM."""
