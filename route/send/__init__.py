"""Where a request goes: the deployments of each model, attempts at an answer, and what they cost."""
