"""The APIs that clients speak, one file each; inside the router every request is one of chat completions."""
