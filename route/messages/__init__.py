"""Anthropic's Messages API in front of the router: pure translations from and to OpenAI's chat completions."""

from route.messages.request import chat_request
from route.messages.response import MessageStream, error_of, message_of

__all__ = ["MessageStream", "chat_request", "error_of", "message_of"]
