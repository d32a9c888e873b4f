"""Anthropic's Messages API in front of the router: pure translations from and to OpenAI's chat completions."""

from route.messages.request import HINTS, chat_request
from route.messages.response import MessageStream, error_of, message_of

__all__ = ["HINTS", "MessageStream", "chat_request", "error_of", "message_of"]
