"""Ingest: items of downloaded benchmarks, and of any file of prompts with reference answers."""
