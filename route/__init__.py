"""The OpenAI-compatible router: every request goes to the model that is expected to answer it best within a budget."""
