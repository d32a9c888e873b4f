"""The five phases: what is asked of whom, what is kept of it, and what is still missing."""
