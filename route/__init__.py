"""The OpenAI-compatible router: sends each request to the model that is expected to answer it best within a budget."""
