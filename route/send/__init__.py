"""Sending of requests: the deployments of each model, attempts at an answer, and their cost."""
